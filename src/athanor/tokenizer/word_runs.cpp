#include "athanor/tokenizer/word_runs.h"

#include <algorithm>
#include <queue>
#include <span>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/tokenizer/word_table.h"

namespace athanor {
namespace {

void append_number(std::string& out, uint64_t number) {
  while (number >= 0x80) {
    out += static_cast<char>(number | 0x80);
    number >>= 7;
  }
  out += static_cast<char>(number);
}

}  // namespace

class WordRun::Reader {
 public:
  explicit Reader(const WordRun& run) : run_(run) { buffer_.resize(static_cast<size_t>(run.buffer_bytes_)); }

  // False at the end.
  bool next() {
    if (seen_ == run_.words_) {
      if (place_ != filled_ || offset_ != run_.size_ || checksum_.value() != run_.checksum_) damaged();
      return false;
    }
    ++seen_;
    const uint64_t shared = number(), rest = number();
    if (shared > word_.size() || rest > static_cast<uint64_t>(WordTable::longest_word)) damaged();
    word_.resize(shared);
    for (uint64_t i = 0; i < rest; ++i) word_ += byte();
    count_ = number();
    return true;
  }
  const std::string& word() const { return word_; }
  uint64_t count() const { return count_; }

 private:
  [[noreturn]] void damaged() const {
    throw_user_error("the scratch file '" + run_.path_ + "' was changed or damaged while it was in use",
                     "run the command again, with scratch files on a sound disk");
  }

  char byte() {
    if (place_ == filled_) {
      const int64_t left = run_.size_ - offset_;
      filled_ = static_cast<size_t>(std::min(left, static_cast<int64_t>(buffer_.size())));
      if (filled_ == 0) damaged();
      const auto bytes = std::as_writable_bytes(std::span(buffer_.data(), filled_));
      run_.file_->read_at(offset_, bytes);
      checksum_.update(bytes);
      offset_ += static_cast<int64_t>(filled_);
      place_ = 0;
    }
    return buffer_[place_++];
  }

  uint64_t number() {
    uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto part = static_cast<uint8_t>(byte());
      result |= static_cast<uint64_t>(part & 0x7f) << shift;
      if (part < 0x80) return result;
    }
    damaged();
  }

  const WordRun& run_;
  std::vector<char> buffer_;
  size_t place_ = 0, filled_ = 0;
  int64_t offset_ = 0, seen_ = 0;
  Crc32c checksum_;
  std::string word_;
  uint64_t count_ = 0;
};

WordRun::WordRun(FileEnvironment& files, std::string path, int64_t buffer_bytes,
                 const std::function<void(const Visitor&)>& write)
    : path_(std::move(path)), buffer_bytes_(buffer_bytes) {
  const std::unique_ptr<WritableFile> file = files.create(path_, {CreateMode::exclusive, 0});
  try {
    file_ = files.open(path_);
  } catch (...) {
    files.remove(path_);
    throw;
  }
  files.remove(path_);
  std::string out, last;
  Crc32c checksum;
  const auto flush = [&] {
    const auto bytes = std::as_bytes(std::span(out.data(), out.size()));
    file->append(bytes);
    checksum.update(bytes);
    out.clear();
  };
  write([&](std::string_view word, uint64_t count) {
    ATHANOR_ASSERT(words_ == 0 || std::string_view(last) < word);
    const auto split = std::mismatch(word.begin(), word.end(), last.begin(), last.end()).first;
    const auto shared = static_cast<size_t>(split - word.begin());
    append_number(out, shared);
    append_number(out, word.size() - shared);
    out += word.substr(shared);
    append_number(out, count);
    last.resize(shared);
    last += word.substr(shared);
    ++words_;
    bytes_ += static_cast<int64_t>(word.size());
    if (static_cast<int64_t>(out.size()) >= buffer_bytes_) flush();
  });
  flush();
  size_ = file->size();
  checksum_ = checksum.value();
  file->close();  // never read after this process: no sync
}

void WordRun::for_each(const Visitor& visit) const {
  for (Reader reader(*this); reader.next();) visit(reader.word(), reader.count());
}

void WordRun::merge(const std::vector<std::unique_ptr<WordRun>>& runs, const Visitor& visit) {
  std::vector<std::unique_ptr<Reader>> readers;
  const auto later = [](const Reader* a, const Reader* b) { return a->word() > b->word(); };
  std::priority_queue<Reader*, std::vector<Reader*>, decltype(later)> queue(later);
  for (const auto& run : runs) {
    readers.push_back(std::make_unique<Reader>(*run));
    if (readers.back()->next()) queue.push(readers.back().get());
  }
  std::string word;
  while (!queue.empty()) {
    word = queue.top()->word();
    uint64_t count = 0;
    while (!queue.empty() && queue.top()->word() == word) {
      Reader* reader = queue.top();
      queue.pop();
      count += reader->count();
      if (reader->next()) queue.push(reader);
    }
    visit(word, count);
  }
}

}  // namespace athanor
