// llm.c's token files: memory-mapped reader. Byte by byte in docs/formats/llmc_tokens.md.
//
// Called by whoever opens data. Errors: user errors with the path. Thread safety: may be read by many
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "athanor/base/file_environment.h"
#include "athanor/data/packed_ids.h"
#include "athanor/data/token_source.h"

namespace athanor {

// One document: the format does not say where texts begin. Nor does it say a vocabulary: `vocabulary_limit`
// bounds the ids, and reading one that is not below is an error.
class LlmcTokens final : public TokenSource {
 public:
  static std::shared_ptr<const LlmcTokens> open(FileEnvironment& files, const std::string& path,
                                                int64_t vocabulary_limit);
  // True for a file that begins as one of llm.c's, of any kind.
  static bool begins_as_one(std::span<const std::byte> bytes);

  int64_t token_count() const override { return token_count_; }
  int64_t document_count() const override { return token_count_ > 0 ? 1 : 0; }
  int64_t vocabulary_size() const override { return vocabulary_size_; }
  uint32_t identity() const override { return identity_; }
  void read(int64_t first, std::span<int32_t> out) const override;
  Document document_at(int64_t position) const override;
  Document document(int64_t number) const override;

  IdType id_type() const { return type_; }

 private:
  LlmcTokens(std::string path, const ReadableFile& file, int64_t vocabulary_limit);
  [[noreturn]] void damaged(const std::string& reason) const;

  std::string path_;
  std::shared_ptr<const MappedFile> map_;
  IdType type_ = IdType::u16;
  int64_t token_count_ = 0, vocabulary_size_ = 0;
  uint32_t identity_ = 0;
};

}  // namespace athanor
