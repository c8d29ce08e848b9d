// A folder with a small text, and the command line that trains a tiny model on it as a person would.
//
// For end-to-end tests of jobs of several processes, in whose files the program and the sources are known.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "support/program.h"

namespace athanor {

inline int occurrences(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

class Launch : public testing::Test {
 protected:
  Launch() {
    std::string text;
    for (int line = 0; line < 300; ++line) text += fmt::format("Line {} and {}.\n", line, line * line);
    write_file_atomically(system_files(), folder_.path("text.txt"), text);
  }
  std::vector<std::string> train(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {ATHANOR_PROGRAM, "train", "--config",
                                          ATHANOR_SOURCE_DIR "/configs/runs/tiny.toml"};
    for (const std::string& setting :
         {"run.name=" + name, std::string("data.train=text.txt"), std::string("run.measure_peak=false"),
          std::string("sample.length=0"), std::string("validation.every=0"),
          std::string("data.sequence_length=16"), std::string("train.micro_batch=1"),
          std::string("train.batch=4"), std::string("train.threads=1"),
          std::string("data.validation_fraction=0")})
      arguments.insert(arguments.end(), {"--set", setting});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::vector<double> losses(const std::string& name) const {
    std::ifstream file(folder_.path("runs/" + name + "/metrics.jsonl"));
    std::vector<double> list;
    for (std::string line; std::getline(file, line);)
      list.push_back(nlohmann::json::parse(line).at("loss").get<double>());
    return list;
  }
  bool has_steps(const std::string& name) const { return !losses(name).empty(); }
  static std::vector<pid_t> children(pid_t process) {
    std::ifstream file(fmt::format("/proc/{}/task/{}/children", process, process));
    std::vector<pid_t> list;
    for (pid_t child = 0; file >> child;) list.push_back(child);
    return list;
  }
  static bool is_alive(pid_t process) { return kill(process, 0) == 0; }

  TemporaryFolder folder_;
};

}  // namespace athanor
