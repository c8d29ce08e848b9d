// Runs a fuzz target over the files of a folder: `replay_NAME FOLDER`. An empty folder fails.

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "athanor/base/error.h"
#include "athanor/base/file_environment.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 2;
  }
  try {
    athanor::FileEnvironment& files = athanor::system_files();
    int replayed = 0;
    for (const std::string& name : files.list(arguments[1])) {
      std::printf("%s\n", name.c_str());
      std::fflush(stdout);  // a crash comes after the name of its file
      const std::string bytes = athanor::read_file(files, athanor::join_path(arguments[1], name), 1 << 24);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      ++replayed;
    }
    if (replayed == 0) std::fprintf(stderr, "%s holds no file\n", arguments[1]);
    return replayed == 0 ? 1 : 0;
  } catch (const athanor::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
