#include "athanor/comm/collective.h"

#include <array>
#include <numeric>

#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr std::array<std::string_view, collective_kind_count> kind_names = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "receive"};
constexpr std::array<std::string_view, algorithm_count> algorithm_names = {
    "automatic", "one_shot", "direct", "ring", "halving_doubling", "double_tree", "hierarchical"};

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

[[noreturn]] void refuse(const CollectiveSpec& spec, const std::string& why) {
  throw_user_error(fmt::format("{}: {}", name_of(spec.kind), why));
}

void check_counts(const CollectiveSpec& spec, const std::vector<int64_t>& counts, size_t wanted) {
  if (counts.size() != wanted) refuse(spec, fmt::format("{} counts, not {}", counts.size(), wanted));
  constexpr int64_t most = int64_t{1} << 56;
  int64_t sum = 0;
  for (const int64_t count : counts) {
    if (count < 0 || count > most - sum) refuse(spec, fmt::format("a count of {}", count));
    sum += count;
  }
}

}  // namespace

std::string_view name_of(CollectiveKind kind) {
  return kind_names[static_cast<size_t>(kind)];
}

std::string_view name_of(CollectiveReduction reduction) {
  return reduction == CollectiveReduction::sum ? "sum" : "max";
}

std::string_view name_of(Algorithm algorithm) {
  return algorithm_names[static_cast<size_t>(algorithm)];
}

bool has_reduction(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter;
}

bool has_root(CollectiveKind kind) {
  return kind == CollectiveKind::broadcast || kind == CollectiveKind::send || kind == CollectiveKind::receive;
}

DType accumulator_of(DType dtype) {
  return is_float(dtype) && dtype != DType::fp64 ? DType::fp32 : dtype;
}

bool is_reducible(DType dtype) {
  switch (dtype) {
    case DType::fp64:
    case DType::fp32:
    case DType::bf16:
    case DType::fp16:
    case DType::int64:
    case DType::int32:
      return true;
    default:
      return false;
  }
}

int64_t input_count(const CollectiveSpec& spec, int member) {
  switch (spec.kind) {
    case CollectiveKind::all_gather:
      return spec.counts[static_cast<size_t>(member)];
    case CollectiveKind::broadcast:
      return member == spec.root ? spec.counts[0] : 0;
    case CollectiveKind::receive:
      return 0;
    default:
      return sum_of(spec.counts);
  }
}

int64_t output_count(const CollectiveSpec& spec, int member) {
  switch (spec.kind) {
    case CollectiveKind::reduce_scatter:
      return spec.counts[static_cast<size_t>(member)];
    case CollectiveKind::all_to_all:
      return sum_of(spec.receive_counts);
    case CollectiveKind::send:
      return 0;
    default:
      return sum_of(spec.counts);
  }
}

void check_collective(const CollectiveSpec& spec, int members, int member) {
  const auto n = static_cast<size_t>(members);
  const bool per_member = spec.kind == CollectiveKind::all_gather ||
                          spec.kind == CollectiveKind::reduce_scatter ||
                          spec.kind == CollectiveKind::all_to_all;
  check_counts(spec, spec.counts, per_member ? n : 1);
  check_counts(spec, spec.receive_counts, spec.kind == CollectiveKind::all_to_all ? n : 0);
  if (has_root(spec.kind) && (spec.root < 0 || spec.root >= members))
    refuse(spec, fmt::format("member {} of a group of {}", spec.root, members));
  if ((spec.kind == CollectiveKind::send || spec.kind == CollectiveKind::receive) && spec.root == member)
    refuse(spec, "a rank cannot send to itself");
  if (has_reduction(spec.kind) && !is_reducible(spec.dtype))
    refuse(spec, fmt::format("values of type {} cannot be reduced", name_of(spec.dtype)));
  const auto is_wire_float = [](DType type) { return is_float(type) && is_reducible(type); };
  if (spec.wire != spec.dtype &&
      (!is_wire_float(spec.wire) || !is_wire_float(spec.dtype) || size_of(spec.wire) > size_of(spec.dtype)))
    refuse(spec, fmt::format("{} cannot travel as {}", name_of(spec.dtype), name_of(spec.wire)));
}

}  // namespace athanor
