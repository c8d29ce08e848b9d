// Training a tokenizer on the two texts that take the most memory: all words different, and no word's end.

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>

#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "support/program.h"

namespace athanor {
namespace {

constexpr size_t text_bytes = 8'000'000;
constexpr int64_t memory_limit = 32'000'000;
constexpr int64_t program_bytes = 24'000'000;  // what the program takes before it trains

std::string different_words(std::mt19937_64& random) {
  std::string text;
  while (text.size() < text_bytes) {
    uint64_t letters = random();
    for (int i = 0; i < 8; ++i, letters /= 26) text += static_cast<char>('a' + letters % 26);
    text += ' ';
  }
  return text;
}

std::string no_blank(std::mt19937_64& random) {
  std::string text;
  while (text.size() < text_bytes) text += static_cast<char>('a' + random() % 26);
  return text;
}

TEST(TokenizerTrainingSlow, P120_KeepsToItsMemoryWithTheSameResult) {
  const TemporaryFolder folder;
  std::mt19937_64 random(1);
  write_file_atomically(system_files(), folder.path("words.txt"), different_words(random));
  write_file_atomically(system_files(), folder.path("blanks.txt"), no_blank(random));
  const auto train = [&](const std::string& text, const std::string& memory) {
    const ProgramResult result =
        run_and_wait({ATHANOR_PROGRAM, "tokenizer", "train", text, "--vocabulary", "1000", "-o", "out.json",
                      "--memory", memory, "--threads", "2"},
                     folder.path());
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return read_file(system_files(), folder.path("out.json"), 1 << 24);
  };
  const std::string little = fmt::format("{}", memory_limit);
  const std::string words = train("words.txt", little), blanks = train("blanks.txt", little);
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);  // the largest child so far
  EXPECT_LT(usage.ru_maxrss * 1024, memory_limit + program_bytes);
  EXPECT_EQ(train("words.txt", "4G"), words);
  EXPECT_EQ(train("blanks.txt", "4G"), blanks);
}

}  // namespace
}  // namespace athanor
