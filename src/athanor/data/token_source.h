// Where tokens come from: a sequence of ids that falls into documents, read at any place.
//
// The seam between storage (token files now, other formats later) and everything that cuts samples.
// Called by batch and loader. Thread safety: reading functions may be called from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace athanor {

struct Document {
  int64_t number = 0;          // counted from 0 over the whole source
  int64_t begin = 0, end = 0;  // its tokens, [begin, end)
};

// A part of a source: tokens [begin, end).
struct TokenRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t token_count() const = 0;
  virtual int64_t document_count() const = 0;
  virtual int64_t vocabulary_size() const = 0;  // every id is below
  virtual uint32_t identity() const = 0;        // a checksum of all contents
  // The ids [first, first + out.size()), which must exist. Throws a user error when they are damaged.
  virtual void read(int64_t first, std::span<int32_t> out) const = 0;
  // The document that holds token `position`, in [0, token_count()).
  virtual Document document_at(int64_t position) const = 0;
};

// Several sources one after another: the shards of one data set. Documents do not reach over a border.
class TokenStream final : public TokenSource {
 public:
  explicit TokenStream(std::vector<std::shared_ptr<const TokenSource>> parts);

  int64_t token_count() const override { return first_tokens_.back(); }
  int64_t document_count() const override { return first_documents_.back(); }
  int64_t vocabulary_size() const override { return vocabulary_size_; }
  uint32_t identity() const override { return identity_; }
  void read(int64_t first, std::span<int32_t> out) const override;
  Document document_at(int64_t position) const override;

 private:
  size_t part_of(int64_t position) const;

  std::vector<std::shared_ptr<const TokenSource>> parts_;
  std::vector<int64_t> first_tokens_, first_documents_;  // of each part, and the totals at the end
  int64_t vocabulary_size_ = 0;
  uint32_t identity_ = 0;
};

// Cuts the tail off for validation: its floor(fraction * tokens) last tokens, by tokens and not by
// documents. `fraction` in [0, 1).
struct TrainValidationSplit {
  TokenRange train, validation;
};
TrainValidationSplit split_tokens(int64_t token_count, double validation_fraction);

}  // namespace athanor
