// Megatron's indexed datasets, PREFIX.bin and PREFIX.idx: memory-mapped reader and streaming writer. Byte by
// byte in docs/formats/megatron_dataset.md.
//
// Called by whoever opens or prepares data. Errors: user errors with the path. Thread safety: a writer by one
// thread, a MegatronDataset by many.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/data/packed_ids.h"
#include "athanor/data/token_source.h"

namespace athanor {

// The prefix that `path` names: PREFIX.idx, PREFIX.bin beside an index, or PREFIX itself when there is no
// such file. None: it names no indexed dataset.
std::optional<std::string> megatron_prefix(FileEnvironment& files, const std::string& path);

// Sequences one after another, documents as the index has them (some may be empty). The format says nothing
// of a vocabulary: `vocabulary_limit` bounds the ids, and reading one that is not below is an error.
class MegatronDataset final : public TokenSource {
 public:
  // Maps both files and checks every field of the index. Holds 8 bytes for every sequence only when these do
  // not lie one after another in the .bin file.
  static std::shared_ptr<const MegatronDataset> open(FileEnvironment& files, const std::string& prefix,
                                                     int64_t vocabulary_limit);

  int64_t token_count() const override { return token_count_; }
  int64_t document_count() const override { return document_count_; }
  int64_t vocabulary_size() const override { return vocabulary_size_; }
  uint32_t identity() const override { return identity_; }
  void read(int64_t first, std::span<int32_t> out) const override;
  Document document_at(int64_t position) const override;
  Document document(int64_t number) const override;

  int64_t sequence_count() const { return sequence_count_; }
  IdType id_type() const { return type_; }

 private:
  MegatronDataset(std::string prefix, const ReadableFile& index, const ReadableFile& tokens,
                  int64_t vocabulary_limit);
  [[noreturn]] void damaged(const std::string& reason) const;
  void read_header();
  void check_sequences();
  void check_documents() const;
  void check_modes() const;
  int64_t length(int64_t sequence) const;
  int64_t offset(int64_t sequence) const;
  int64_t sequence_start(
      int64_t sequence) const;  // its first token; of sequence_count(): the number of tokens
  int64_t document_sequence(int64_t document) const;

  std::string prefix_;
  std::shared_ptr<const MappedFile> index_, tokens_;
  IdType type_ = IdType::u16;
  bool has_modes_ = false;
  int64_t sequence_count_ = 0, document_count_ = 0, token_count_ = 0, vocabulary_size_ = 0;
  uint32_t identity_ = 0;
  std::vector<int64_t> starts_;  // of sequences, and the total; empty where offsets say the same
};

// Receives the tokens of a new dataset. Holds 4 bytes for every sequence and 8 for every document.
class MegatronWriter {
 public:
  // Ids of the sequence at hand, each in [0, vocabulary_size).
  void append(std::span<const int32_t> ids);
  void end_sequence();
  // Ends the sequence at hand too; without one since the last end, there is no document.
  void end_document();

  int64_t token_count() const { return token_count_; }

 private:
  friend void write_megatron_dataset(FileEnvironment& files, const std::string& prefix,
                                     int64_t vocabulary_size,
                                     const std::function<void(MegatronWriter&)>& fill);
  MegatronWriter(WritableFile& file, int64_t vocabulary_size);
  void flush();
  void write_index(WritableFile& file) const;

  WritableFile& file_;
  int64_t vocabulary_size_;
  size_t width_;
  std::vector<std::byte> buffer_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_{0};
  int64_t token_count_ = 0, sequence_start_ = 0;
};

// Writes PREFIX.bin, then PREFIX.idx, each atomically; an index of before is removed before its .bin file is
// replaced, so that the two never belong to different datasets. Ids are u16 below a vocabulary of 65,500 and
// i32 from there.
void write_megatron_dataset(FileEnvironment& files, const std::string& prefix, int64_t vocabulary_size,
                            const std::function<void(MegatronWriter&)>& fill);

}  // namespace athanor
