#include "athanor/train/rank_layout.h"

#include "athanor/base/error.h"

namespace athanor {

namespace {

constexpr std::array<Axis, 4> axes = {Axis::replica, Axis::shard, Axis::context, Axis::tensor};

std::string product_text(const Mesh& mesh) {
  std::string text;
  for (const Axis axis : axes)
    text += fmt::format("{}mesh.{} {}", text.empty() ? "" : " x ", name_of(axis), mesh.size(axis));
  return text;
}

// The axes that alone could be changed so that the mesh has so many ranks.
std::string mend_text(const Mesh& mesh, int64_t ranks) {
  std::string text;
  for (const Axis axis : axes) {
    const int64_t others = mesh.ranks() / mesh.size(axis);
    if (ranks % others != 0) continue;
    text += fmt::format("{}mesh.{}={}", text.empty() ? "" : ", or ", name_of(axis), ranks / others);
  }
  return text;
}

}  // namespace

void require_ranks(const Mesh& mesh, int64_t ranks) {
  if (mesh.ranks() == ranks) return;
  const std::string mend = mend_text(mesh, ranks);
  throw_user_error(
      fmt::format("the job has {} ranks and the mesh {} ({})", ranks, mesh.ranks(), product_text(mesh)),
      mend.empty() ? fmt::format("start {} ranks, or choose a mesh of {}", mesh.ranks(), ranks)
                   : fmt::format("start {} ranks, or set {}", mesh.ranks(), mend));
}

int64_t padded_sequence(const LayoutOptions& layout, int64_t sequence_length) {
  const int64_t granule = sequence_granule(layout);
  return (sequence_length + granule - 1) / granule * granule;
}

BatchPart batch_part(const ModelConfig& model, const LayoutOptions& options, int32_t rank,
                     int64_t micro_batch, int64_t sequence_length) {
  if (model.positions == PositionKind::learned && sequence_length > model.maximum_positions) {
    throw_user_error(fmt::format("a sequence of {} tokens is longer than model.maximum_positions {}",
                                 sequence_length, model.maximum_positions),
                     "shorten data.sequence_length or give the model more positions");
  }
  const Layout layout = layout_of(model, options);
  const Mesh& mesh = layout.mesh();
  const int64_t samples = micro_batch * mesh.data_ranks();
  const Shape batch{samples, padded_sequence(options, sequence_length)};
  const auto owned = owned_ranges(batch, layout.batch, mesh, coordinates_of(mesh, rank));
  ATHANOR_ASSERT(owned[0].size() == 1 && owned[0][0].size() == micro_batch, "{} samples", samples);
  BatchPart part{samples, {owned[0][0].begin, owned[0][0].end}, {}};
  for (const Range& range : owned[1]) part.places.push_back({range.begin, range.end});
  return part;
}

}  // namespace athanor
