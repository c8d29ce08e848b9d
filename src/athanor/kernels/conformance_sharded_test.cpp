// Cases of what only models on several ranks have: parts of a vocabulary, parts of tensors.
#include "athanor/kernels/conformance_cases.h"

namespace athanor::testing {
namespace {

using enum OperationKind;

// Columns [first, first + columns) of a vocabulary; padding at its end, and nothing but padding.
struct VocabularySize {
  int64_t B, S, columns, first, vocabulary, padding;
};
const std::vector<VocabularySize> vocabulary_sizes = {
    {1, 0, 7, 0, 7, 0},    {1, 1, 1, 0, 1, 0},    {1, 7, 65, 65, 130, 3},        {3, 11, 4, 4, 7, 0},
    {2, 65, 33, 0, 99, 5}, {2, 5, 17, 34, 33, 0}, {1, 2, 12565, 37695, 50257, 0}};

void vocabulary_cases(CaseBuilder& cases, OperationKind kind) {
  const TypeProfile& t = cases.types();
  for (const VocabularySize& v : vocabulary_sizes) {
    for (const DType dtype : cases.distinct_types()) {
      for (const bool all_options : {false, true}) {
        const Shape shape{v.B, v.S, v.columns};
        Attributes attributes{.extent = v.vocabulary};
        if (all_options) attributes.soft_cap = 4;
        const std::string what =
            fmt::format("[{},{},{}] from {} of {}, {}{}", v.B, v.S, v.columns, v.first, v.vocabulary,
                        name_of(dtype), all_options ? ", all options" : "");
        const auto add = [&](const std::string& more, std::vector<Tensor> inputs,
                             std::vector<Tensor> outputs) -> Call& {
          Call& call = cases.add(kind, what + more, std::move(inputs), std::move(outputs), attributes, 6);
          call.first = v.first;
          call.step.loss_scale = 4;
          return call;
        };
        const Tensor logits = cases.random(dtype, shape, v.padding, -6, 6);
        // Labels of this part, of others, and ignored ones.
        Tensor labels = cases.integers({v.B, v.S}, v.vocabulary);
        for (int64_t i = 1; i < labels.elements(); i += 2)
          labels.set(i, static_cast<double>(std::min(v.vocabulary - 1, v.first + i % v.columns)));
        for (int64_t i = 3; i < labels.elements(); i += 5) labels.set(i, ignored_label);
        const Tensor row_max = cases.random(t.wide, {v.B, v.S}, 0, 5, 7);
        const Tensor loss = cases.output(t.wide, {v.B, v.S}),
                     sums = cases.random(t.wide, {v.B, v.S, 3}, 0, 1, 6);
        if (kind == vocabulary_max) add("", {logits}, {loss});
        if (kind == vocabulary_sums)
          add("", {logits, labels, row_max}, {cases.output(t.wide, {v.B, v.S, 3}, v.padding)});
        if (kind != vocabulary_loss) continue;
        if (all_options) attributes.label_smoothing = 0.1;
        if (all_options) attributes.z_loss = 1e-2;
        const auto scalar = [](double value) { return Tensor(DType::fp64, {1}).assign({value}); };
        add(", loss alone", {logits, labels, row_max, sums, Tensor()}, {loss, Tensor()});
        add(", no valid token", {logits, labels, row_max, sums, scalar(0)},
            {loss, cases.output(t.compute, shape)});
        const Call call = add("", {logits, labels, row_max, sums, scalar(1.5)},
                              {loss, cases.output(dtype, shape, v.padding)});
        cases.add_shared(call, 1, 0, 6);
      }
    }
  }
}

struct PartCase {
  Shape whole;
  Placement to;
  int32_t ranks;
  int64_t padding = 0;  // between tokens of the whole
};

Placement shard(int dim, ShardPattern pattern = ShardPattern::contiguous, uint16_t repeat = 1,
                uint32_t unit = 1) {
  return {.kind = PlacementKind::shard,
          .dim = static_cast<uint8_t>(dim),
          .pattern = pattern,
          .repeat = repeat,
          .unit = unit};
}

const std::vector<PartCase>& part_cases() {
  constexpr auto zigzag = ShardPattern::zigzag;
  static const std::vector<PartCase> list = {{{7}, shard(0), 3},
                                             {{50257}, shard(0), 2},
                                             {{7, 33}, shard(0), 2},
                                             {{5, 130}, shard(1), 3},
                                             {{0, 3, 4}, shard(1), 2},
                                             {{4, 3, 5}, shard(0), 4, 2},
                                             {{2, 33, 7}, shard(1), 2, 3},
                                             {{2, 24, 7}, shard(1, zigzag), 3, 0},
                                             {{1, 65, 1}, shard(1, zigzag), 2, 4},
                                             {{3, 11, 130}, shard(2), 3, 5},
                                             {{2, 7, 12, 8}, shard(2, ShardPattern::contiguous, 2, 4), 4, 6},
                                             {{2, 7, 3, 10}, shard(3), 4},
                                             {{2, 400, 96}, shard(1, zigzag), 2},
                                             {{2, 3}, shard(1), 5},
                                             {{1, 1, 1}, shard(2), 1}};
  return list;
}

void local_part_cases(CaseBuilder& cases) {
  std::vector<DType> types = cases.distinct_types();
  types.push_back(DType::int32);
  types.push_back(DType::int64);
  for (const PartCase& c : part_cases()) {
    for (const DType dtype : types) {
      const Shape part =
          storage_shape(c.whole, placements_of(Axis::tensor, c.to), mesh_of(Axis::tensor, c.ranks));
      for (int32_t rank = 0; rank < c.ranks; ++rank) {
        Call& call = cases.add(local_part,
                               fmt::format("{} of {} on rank {} of {}, {} apart by {}", to_text(c.to),
                                           to_text(c.whole), rank, c.ranks, name_of(dtype), c.padding),
                               {cases.random(dtype, c.whole, c.padding, -100, 100)},
                               {cases.output(dtype, part, c.padding / 2)},
                               {.axis = Axis::tensor, .ranks = c.ranks, .to = c.to});
        call.coordinate = rank;
      }
    }
  }
}

}  // namespace

bool add_sharded_cases(OperationKind kind, CaseBuilder& cases) {
  switch (kind) {
    case vocabulary_max:
    case vocabulary_sums:
    case vocabulary_loss:
      vocabulary_cases(cases, kind);
      return true;
    case local_part:
      local_part_cases(cases);
      return true;
    default:
      return false;
  }
}

}  // namespace athanor::testing
