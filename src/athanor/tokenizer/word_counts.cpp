#include "athanor/tokenizer/word_counts.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/tokenizer/training_threads.h"
#include "athanor/tokenizer/word_runs.h"
#include "athanor/tokenizer/word_table.h"

namespace athanor {
namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();
constexpr size_t most_runs = 64;  // read at once

class WordsInMemory final : public WordSource {
 public:
  explicit WordsInMemory(std::vector<WordTable> tables)
      : tables_(std::move(tables)) {}  // without common words
  int64_t words() const override { return sum(&WordTable::words); }
  int64_t bytes() const override { return sum(&WordTable::bytes); }
  int64_t memory_bytes() const override { return sum(&WordTable::memory_bytes); }
  void for_each(const Visitor& visit) const override {
    for (const WordTable& table : tables_) table.for_each(visit);
  }

 private:
  int64_t sum(int64_t (WordTable::*of)() const) const {
    int64_t total = 0;
    for (const WordTable& table : tables_) total += (table.*of)();
    return total;
  }
  std::vector<WordTable> tables_;
};

class WordsOnDisk final : public WordSource {
 public:
  WordsOnDisk(std::unique_ptr<WordRun> run, int64_t buffer_bytes)
      : run_(std::move(run)), buffer_bytes_(buffer_bytes) {}
  int64_t words() const override { return run_->words(); }
  int64_t bytes() const override { return run_->bytes(); }
  int64_t memory_bytes() const override { return buffer_bytes_; }
  void for_each(const Visitor& visit) const override { run_->for_each(visit); }

 private:
  std::unique_ptr<WordRun> run_;
  int64_t buffer_bytes_;
};

class WordCounter {
 public:
  WordCounter(const NextPiece& next, const WordCountOptions& options)
      : next_(next), options_(options), tables_(static_cast<size_t>(options.threads)) {
    if (options.memory_bytes <= 0) return;
    constexpr int64_t piece_bytes = int64_t{4} << 20;
    table_limit_ =
        std::max<int64_t>(options.memory_bytes / 2 / options.threads - piece_bytes, int64_t{1} << 18);
    buffer_bytes_ =
        std::clamp<int64_t>(options.memory_bytes / 4 / static_cast<int64_t>(most_runs), 1 << 12, 1 << 20);
  }

  std::unique_ptr<WordSource> count() {
    run_on_threads(options_.threads, [this](int thread) {
      try {
        count_on(tables_[static_cast<size_t>(thread)]);
      } catch (...) {
        const std::lock_guard lock(next_mutex_);
        ended_ = true;  // the others need not go on
        throw;
      }
    });
    if (!runs_.empty()) {
      for (WordTable& table : tables_) spill(table);
      return on_disk();
    }
    if (tables_.size() > 1) join_tables();
    int64_t bytes = 0;
    for (const WordTable& table : tables_) bytes += table.memory_bytes();
    if (options_.memory_bytes <= 0 || bytes <= options_.memory_bytes / 4) {
      return std::make_unique<WordsInMemory>(std::move(tables_));
    }
    for (WordTable& table : tables_) spill(table);
    return on_disk();
  }

 private:
  void count_on(WordTable& table) {
    TextPiece piece;
    while (take(piece)) {
      size_t begin = 0;
      for (const size_t end : piece.ends) {
        const auto text = std::string_view(piece.text).substr(begin, end - begin);
        for_each_word(options_.pattern, text, [&](std::string_view word) {
          while (static_cast<int64_t>(word.size()) > longest_counted_word) {
            const size_t cut = cut_of(word);
            count_word(table, word.substr(0, cut));
            word.remove_prefix(cut);
          }
          count_word(table, word);
        });
        begin = end;
      }
    }
  }

  bool take(TextPiece& piece) {
    const std::lock_guard lock(next_mutex_);
    if (!ended_) ended_ = !next_(piece);
    return !ended_;
  }

  // Where to cut a word that is too long: between characters if there are any.
  static size_t cut_of(std::string_view word) {
    const auto longest = static_cast<size_t>(longest_counted_word);
    for (size_t cut = longest; cut + 4 > longest; --cut) {
      if ((static_cast<uint8_t>(word[cut]) & 0xc0) != 0x80) return cut;
    }
    return longest;
  }

  void count_word(WordTable& table, std::string_view word) {
    if (table.add(word, 1, table_limit_)) return;
    spill(table);
    if (!table.add(word, 1, unlimited)) ATHANOR_ASSERT(false, "an empty table took no word");
  }

  std::string scratch_name() { return fmt::format("{}{}", options_.scratch, next_run_++); }

  void spill(WordTable& table) {
    if (table.words() == 0) return;
    add_run(write_run(table));
    table.clear();
  }

  std::unique_ptr<WordRun> write_run(const WordTable& table) {
    const std::vector<WordTable::Sorted> order = table.sorted();
    return std::make_unique<WordRun>(*options_.files, scratch_name(), buffer_bytes_,
                                     [&](const WordRun::Visitor& visit) {
                                       for (const WordTable::Sorted& word : order) {
                                         visit(table.word(word), table.count(word));
                                       }
                                     });
  }

  void add_run(std::unique_ptr<WordRun> run) {
    const std::lock_guard lock(runs_mutex_);
    runs_.push_back(std::move(run));
  }

  std::unique_ptr<WordSource> on_disk() {
    while (runs_.size() > 1) {
      std::vector<std::unique_ptr<WordRun>> first;
      const size_t count = std::min(runs_.size(), most_runs);
      std::move(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(count), std::back_inserter(first));
      runs_.erase(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(count));
      runs_.push_back(
          std::make_unique<WordRun>(*options_.files, scratch_name(), buffer_bytes_,
                                    [&](const WordRun::Visitor& visit) { WordRun::merge(first, visit); }));
    }
    return std::make_unique<WordsOnDisk>(std::move(runs_.front()), buffer_bytes_);
  }

  // Puts the words of all threads' tables into as many tables that share none.
  void join_tables() {
    std::vector<WordTable> joined(tables_.size());
    std::atomic<size_t> next = 0;
    run_on_threads(options_.threads, [&](int) {
      for (size_t part = next++; part < joined.size(); part = next++) {
        for (const WordTable& table : tables_) {
          table.for_each([&](std::string_view word, uint64_t count) {
            if ((WordTable::hash(word) >> 20) % joined.size() != part) return;
            joined[part].add(word, count, unlimited);
          });
        }
      }
    });
    tables_ = std::move(joined);
  }

  const NextPiece& next_;
  const WordCountOptions& options_;
  int64_t table_limit_ = unlimited;
  int64_t buffer_bytes_ = 1 << 20;
  std::vector<WordTable> tables_;  // one for each thread

  std::mutex next_mutex_;
  bool ended_ = false;

  std::mutex runs_mutex_;
  std::vector<std::unique_ptr<WordRun>> runs_;
  std::atomic<int64_t> next_run_ = 0;
};

}  // namespace

std::unique_ptr<WordSource> count_words(const NextPiece& next, const WordCountOptions& options) {
  ATHANOR_ASSERT(options.threads >= 1 && (options.memory_bytes <= 0 || options.files != nullptr));
  return WordCounter(next, options).count();
}

}  // namespace athanor
