// What main() of every benchmark has in common: its options, and errors told as the program tells them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace athanor {

// Each option has a default, which is what its variable holds; the variables must live until run() ends.
class BenchmarkOptions {
 public:
  explicit BenchmarkOptions(const std::string& about);  // and --help
  ~BenchmarkOptions();
  BenchmarkOptions(const BenchmarkOptions&) = delete;
  BenchmarkOptions& operator=(const BenchmarkOptions&) = delete;

  void flag(const std::string& name, bool& value, const std::string& about);
  void number(const std::string& name, int& value, int least, int most, const std::string& about);
  void number(const std::string& name, int64_t& value, int64_t least, int64_t most, const std::string& about);
  void number(const std::string& name, double& value, double least, double most, const std::string& about);
  // One of `allowed`, or anything if there is none. A list takes any number of values.
  void text(const std::string& name, std::string& value, const std::string& about,
            const std::vector<std::string>& allowed = {});
  void text(const std::string& name, std::vector<std::string>& values, const std::string& about,
            const std::vector<std::string>& allowed = {});

  // Reads the command line and does `work`; the exit code of the program.
  int run(int count, char** values, const std::function<void()>& work);

 private:
  template <class Value>
  CLI::Option* add(const std::string& name, Value& value, const std::string& about);
  template <class Number>
  void add_number(const std::string& name, Number& value, Number least, Number most,
                  const std::string& about);
  template <class Value>
  void add_text(const std::string& name, Value& value, const std::string& about,
                const std::vector<std::string>& allowed);

  std::unique_ptr<CLI::App> app_;
};

}  // namespace athanor
