// Token files: writer and memory-mapped reader. Byte by byte in docs/formats/token_file.md.
//
// Called by whoever prepares data (write_token_file) and by train (TokenFile::open). Errors: user errors
// with the path. Thread safety: a writer by one thread, a TokenFile by many.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "athanor/base/crc32c.h"
#include "athanor/base/file_environment.h"
#include "athanor/data/token_source.h"

namespace athanor {

struct TokenFileOptions {
  int64_t vocabulary_size = 0;      // every id must be below; decides the width of a token
  int64_t block_bytes = 65'536;     // of one checksum: a power of two, 4 KiB to 1 GiB
  uint32_t tokenizer_identity = 0;  // Tokenizer::identity() of what made the ids; 0: not said
};

// Receives the documents of a new file, in order. Holds one block of tokens, 8 bytes for every document, 16
// for every unlearned stretch and 4 for every block in memory.
class TokenFileWriter {
 public:
  // Ids of the document at hand, each in [0, vocabulary_size). Unlearned ones are read, never predicted.
  void append(std::span<const int32_t> ids, bool learned = true);
  // Ends the document at hand; without tokens since the last end, there is none.
  void end_document();

  int64_t token_count() const { return token_count_; }
  int64_t document_count() const { return static_cast<int64_t>(document_starts_.size()); }
  int64_t unlearned_count() const { return unlearned_count_; }  // tokens

 private:
  friend void write_token_file(FileEnvironment& files, const std::string& path,
                               const TokenFileOptions& options,
                               const std::function<void(TokenFileWriter&)>& fill, int64_t expected_tokens);
  TokenFileWriter(WritableFile& file, TokenFileOptions options);
  void write_block();
  void finish();

  WritableFile& file_;
  TokenFileOptions options_;
  size_t width_ = 0;
  std::vector<std::byte> block_;
  std::vector<uint64_t> document_starts_, unlearned_;
  std::vector<uint32_t> checksums_;
  int64_t token_count_ = 0, document_start_ = 0, unlearned_count_ = 0;
};

// Writes a file atomically: it is there complete and durable, or not at all. `expected_tokens`, if known,
// lets a full disk be found before the first byte.
void write_token_file(FileEnvironment& files, const std::string& path, const TokenFileOptions& options,
                      const std::function<void(TokenFileWriter&)>& fill, int64_t expected_tokens = 0);

class TokenFile final : public TokenSource {
 public:
  // Maps the file and checks all but the tokens themselves.
  static std::shared_ptr<const TokenFile> open(FileEnvironment& files, const std::string& path);

  int64_t token_count() const override { return token_count_; }
  int64_t document_count() const override { return document_count_; }
  int64_t vocabulary_size() const override { return vocabulary_size_; }
  uint32_t identity() const override { return identity_; }
  // Checks the blocks it touches the first time.
  void read(int64_t first, std::span<int32_t> out) const override;
  Document document_at(int64_t position) const override;
  Document document(int64_t number) const override;
  TokenRange unlearned_in(TokenRange range) const override;
  uint32_t tokenizer_identity() const override { return tokenizer_identity_; }

  // True for a file that begins as one.
  static bool begins_as_one(std::span<const std::byte> bytes);

  const std::string& path() const { return path_; }
  int64_t document_start(int64_t document) const;
  int64_t unlearned_stretches() const { return unlearned_stretches_; }
  // Checks every block and every id: reads the whole file.
  void verify() const;

 private:
  TokenFile(std::shared_ptr<const MappedFile> map, std::string path);
  [[noreturn]] void damaged(const std::string& reason) const;
  void check_index() const;
  void check_unlearned() const;
  int64_t unlearned_border(int64_t number) const;
  void check_block(size_t block) const;

  std::shared_ptr<const MappedFile> map_;
  std::string path_;
  size_t width_ = 0, block_bytes_ = 0, block_count_ = 0;
  size_t starts_offset_ = 0, unlearned_offset_ = 0, checksums_offset_ = 0;
  int64_t token_count_ = 0, document_count_ = 0, unlearned_stretches_ = 0, vocabulary_size_ = 0;
  uint32_t identity_ = 0, tokenizer_identity_ = 0;
  // One flag a block. Two threads may check the same block at once; both find the same.
  std::unique_ptr<std::atomic<uint8_t>[]> checked_;
};

}  // namespace athanor
