#include "athanor/data/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "athanor/base/error.h"
#include "athanor/base/plural.h"
#include "athanor/data/llmc_tokens.h"
#include "athanor/data/megatron_dataset.h"
#include "athanor/data/open_source.h"
#include "athanor/data/token_file.h"

namespace athanor {
namespace {

constexpr int64_t piece_tokens = 1 << 16, most_lengths = 1 << 20, shown_bytes = 200;

std::string format_of(const TokenSource& source) {
  if (const auto* file = dynamic_cast<const TokenFile*>(&source)) {
    return file->unlearned_stretches() > 0 || file->tokenizer_identity() != 0
               ? "athanor token file, version 2"
               : "athanor token file, version 1";
  }
  if (const auto* dataset = dynamic_cast<const MegatronDataset*>(&source)) {
    const int64_t count = dataset->sequence_count();
    return fmt::format("Megatron indexed dataset, {} sequence{} of {}-byte tokens", count, plural(count),
                       width_of(dataset->id_type()));
  }
  const auto* tokens = dynamic_cast<const LlmcTokens*>(&source);
  return fmt::format("llm.c token file, {}-byte tokens", tokens == nullptr ? 0 : width_of(tokens->id_type()));
}

// One bit for each id that was seen, up to some id: a file says any.
class IdSet {
 public:
  static constexpr int32_t limit = 1 << 24;
  void add(std::span<const int32_t> ids) {
    for (const int32_t id : ids) {
      if (id >= limit) continue;
      const auto place = static_cast<size_t>(id) / 64;
      if (place >= bits_.size()) bits_.resize(place + 1);
      bits_[place] |= uint64_t{1} << (id % 64);
    }
  }
  int64_t count() const {
    int64_t count = 0;
    for (const uint64_t word : bits_) count += std::popcount(word);
    return count;
  }

 private:
  std::vector<uint64_t> bits_;
};

void read_tokens(const TokenSource& source, Inspection& inspection) {
  std::vector<int32_t> ids;
  IdSet seen;
  inspection.smallest_id = std::numeric_limits<int32_t>::max();
  int64_t at = 0;
  try {
    for (; at < source.token_count(); at += static_cast<int64_t>(ids.size())) {
      ids.resize(static_cast<size_t>(std::min(piece_tokens, source.token_count() - at)));
      source.read(at, ids);
      const auto [smallest, largest] = std::minmax_element(ids.begin(), ids.end());
      inspection.smallest_id = std::min(inspection.smallest_id, *smallest);
      inspection.largest_id = std::max(inspection.largest_id, *largest);
      seen.add(ids);
    }
  } catch (const Error& error) {
    inspection.damage = error.message();
  }
  inspection.distinct_ids = seen.count();
  if (at == 0) inspection.smallest_id = 0;
}

void count_unlearned(const TokenSource& source, Inspection& inspection) {
  TokenRange rest{0, source.token_count()};
  while (rest.begin < rest.end) {
    const TokenRange found = source.unlearned_in(rest);
    inspection.unlearned_tokens += found.size();
    rest.begin = found.size() > 0 ? found.end : rest.end;
  }
}

void measure_documents(const TokenSource& source, Inspection& inspection) {
  std::vector<int64_t> lengths;
  const int64_t count = source.document_count(), taken = std::min(count, most_lengths);
  for (int64_t i = 0; i < taken; ++i) {
    const Document document = source.document(i * (count / taken) + i * (count % taken) / taken);
    lengths.push_back(document.end - document.begin);
  }
  if (lengths.empty()) return;
  std::sort(lengths.begin(), lengths.end());
  const auto quantile = [&](double share) {
    return lengths[static_cast<size_t>(share * static_cast<double>(lengths.size() - 1))];
  };
  inspection.lengths = {lengths.front(), quantile(0.1),  quantile(0.5),
                        quantile(0.9),   quantile(0.99), lengths.back()};
}

std::string beginning(const TokenSource& source, const Document& document, const Tokenizer& tokenizer) {
  try {
    // Every token has a byte, nearly.
    std::vector<int32_t> ids(static_cast<size_t>(std::min(document.end - document.begin, shown_bytes)));
    source.read(document.begin, ids);
    std::string text = tokenizer.decode(ids);
    const bool cut = text.size() > static_cast<size_t>(shown_bytes) ||
                     static_cast<int64_t>(ids.size()) < document.end - document.begin;
    if (text.size() > static_cast<size_t>(shown_bytes)) {
      size_t end = static_cast<size_t>(shown_bytes);
      while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // whole characters
      text.resize(end);
    }
    return text + (cut ? " ..." : "");
  } catch (const Error& error) {
    return fmt::format("({})", error.message());
  }
}

}  // namespace

Inspection inspect(FileEnvironment& files, const InputFile& input,
                   const std::shared_ptr<const Tokenizer>& tokenizer, int64_t shown_documents) {
  constexpr int64_t any = std::numeric_limits<int32_t>::max();
  const auto source = open_token_input(files, input, any);
  if (const uint32_t made_by = source->tokenizer_identity();
      made_by != 0 && tokenizer && made_by != tokenizer->identity()) {
    throw_user_error(fmt::format("'{}' was made with another tokenizer ({:08x}) than the given one ({:08x})",
                                 input.path, made_by, tokenizer->identity()),
                     "`athanor data build` leaves a copy of it beside the data, PREFIX.tokenizer.json");
  }
  Inspection inspection{.path = input.path,
                        .format = format_of(*source),
                        .damage = {},
                        .tokens = source->token_count(),
                        .documents = source->document_count(),
                        .vocabulary = input.kind == InputKind::tokens ? source->vocabulary_size() : 0,
                        .tokenizer = source->tokenizer_identity(),
                        .first_documents = {}};
  read_tokens(*source, inspection);
  count_unlearned(*source, inspection);
  measure_documents(*source, inspection);
  for (int64_t i = 0; tokenizer && i < std::min(shown_documents, source->document_count()); ++i)
    inspection.first_documents.push_back(beginning(*source, source->document(i), *tokenizer));
  return inspection;
}

std::string describe(const Inspection& inspection) {
  std::string text = fmt::format("{}\n  format      {}\n", inspection.path, inspection.format);
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<11} {}\n", name, value);
  };
  line("tokens", fmt::format("{}{}", inspection.tokens,
                             inspection.unlearned_tokens > 0
                                 ? fmt::format(", {} of them not learned", inspection.unlearned_tokens)
                                 : ""));
  line("documents", fmt::format("{}", inspection.documents));
  const auto& lengths = inspection.lengths;
  line("lengths", fmt::format("{} to {}; 10% {}, 50% {}, 90% {}, 99% {}", lengths[0], lengths[5], lengths[1],
                              lengths[2], lengths[3], lengths[4]));
  line("ids", fmt::format("{} to {}, {} different{}", inspection.smallest_id, inspection.largest_id,
                          inspection.distinct_ids,
                          inspection.largest_id >= IdSet::limit ? fmt::format(" below {}", IdSet::limit)
                          : inspection.vocabulary > 0           ? fmt::format(" of {}", inspection.vocabulary)
                                                                : ""));
  if (inspection.tokenizer != 0) line("tokenizer", fmt::format("{:08x}", inspection.tokenizer));
  line("damaged", inspection.damage.empty() ? "no" : inspection.damage);
  for (size_t i = 0; i < inspection.first_documents.size(); ++i)
    line(fmt::format("document {}", i), inspection.first_documents[i]);
  return text;
}

}  // namespace athanor
