// Where tokens come from: a sequence of ids that falls into documents, read at any place.
//
// The seam between storage (token files now, other formats later) and everything that cuts samples.
// Called by batch and loader. Thread safety: reading functions may be called from several threads.
#pragma once

#include <cstdint>
#include <functional>
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
  // A checksum of the contents, of samples of them where the format has no checksums of its own.
  virtual uint32_t identity() const = 0;
  // The ids [first, first + out.size()), which must exist. Throws a user error when they are damaged.
  virtual void read(int64_t first, std::span<int32_t> out) const = 0;
  // The document that holds token `position`, in [0, token_count()).
  virtual Document document_at(int64_t position) const = 0;
  // Document `number`, in [0, document_count()); some formats have documents without tokens.
  virtual Document document(int64_t number) const = 0;
  // The first stretch of tokens in `range` that are not learned (the question of a question and answer),
  // cut to it; an empty one at range.end if there is none.
  virtual TokenRange unlearned_in(TokenRange range) const { return {range.end, range.end}; }
  // Tokenizer::identity() of what made the tokens; 0: the format does not say.
  virtual uint32_t tokenizer_identity() const { return 0; }
};

// Several sources one after another: the shards of one data set. Documents do not reach over a border.
// Sources that name different tokenizers are refused (user error).
class TokenStream final : public TokenSource {
 public:
  explicit TokenStream(std::vector<std::shared_ptr<const TokenSource>> parts);

  int64_t token_count() const override { return first_tokens_.back(); }
  int64_t document_count() const override { return first_documents_.back(); }
  int64_t vocabulary_size() const override { return vocabulary_size_; }
  uint32_t identity() const override { return identity_; }
  void read(int64_t first, std::span<int32_t> out) const override;
  Document document_at(int64_t position) const override;
  Document document(int64_t number) const override;
  TokenRange unlearned_in(TokenRange range) const override;
  uint32_t tokenizer_identity() const override { return tokenizer_identity_; }

 private:
  Document shifted(Document document, size_t part) const;
  size_t part_of(int64_t position) const;

  std::vector<std::shared_ptr<const TokenSource>> parts_;
  std::vector<int64_t> first_tokens_, first_documents_;  // of each part, and the totals at the end
  int64_t vocabulary_size_ = 0;
  uint32_t identity_ = 0, tokenizer_identity_ = 0;
};

// Some documents of a source, in its order. Holds 32 bytes for each run of neighbouring documents.
class DocumentSubset final : public TokenSource {
 public:
  // Documents for which `chosen` is true.
  DocumentSubset(std::shared_ptr<const TokenSource> source, const std::function<bool(int64_t)>& chosen);

  int64_t token_count() const override { return token_count_; }
  int64_t document_count() const override { return document_count_; }
  int64_t vocabulary_size() const override { return source_->vocabulary_size(); }
  uint32_t identity() const override { return identity_; }
  void read(int64_t first, std::span<int32_t> out) const override;
  Document document_at(int64_t position) const override;
  Document document(int64_t number) const override;
  TokenRange unlearned_in(TokenRange range) const override;
  uint32_t tokenizer_identity() const override { return source_->tokenizer_identity(); }

 private:
  // Neighbouring documents: where they begin here and in the source.
  struct Part {
    int64_t first_token, first_document, source_token, source_document;
  };
  size_t part_of(int64_t position) const;
  int64_t end_of(size_t part) const;  // its last token here, plus 1
  Document shifted(Document document, const Part& part) const;

  std::shared_ptr<const TokenSource> source_;
  std::vector<Part> parts_;
  int64_t token_count_ = 0, document_count_ = 0;
  uint32_t identity_ = 0;
};

// A split by document: document n goes where the uniform number in [0, 1) that Philox draws from (seed,
// purpose data_split, n) says: below `validation` to validation, below `validation` + `test` to test,
// else to training. So a document stays where it is however many are added behind it.
struct DocumentSplit {
  double validation = 0, test = 0;  // shares of the documents
  uint64_t seed = 1;
  enum class Part : uint8_t { train, validation, test };
  Part part_of(int64_t document) const;
};
void validate(const DocumentSplit& split);  // user error: shares that are negative or leave nothing

// Cuts the tail off for validation: its floor(fraction * tokens) last tokens, by tokens and not by
// documents. `fraction` in [0, 1).
struct TrainValidationSplit {
  TokenRange train, validation;
};
TrainValidationSplit split_tokens(int64_t token_count, double validation_fraction);

}  // namespace athanor
