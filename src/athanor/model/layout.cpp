#include "athanor/model/layout.h"

#include <algorithm>
#include <numeric>

#include "athanor/base/error.h"

namespace athanor {

namespace {

void put(Placements& placements, Axis axis, const Placement& placement) {
  placements[static_cast<size_t>(axis)] = placement;
}

Placement shard(int dim, int64_t unit = 1, uint16_t repeat = 1) {
  return {.kind = PlacementKind::shard,
          .dim = static_cast<uint8_t>(dim),
          .repeat = repeat,
          .unit = static_cast<uint32_t>(unit)};
}

// Products into the heads and the features are cut by their outputs, products back into the residual stream
// by their inputs (Shoeybi et al. 2019); the vocabulary is cut by rows.
void cut_parameters(Layout& layout, const ModelConfig& config) {
  const int32_t ranks = layout.mesh().size(Axis::tensor);
  const int64_t groups = config.key_value_heads_or_default(), width = config.head_dim_or_default();
  const HeadCut cut = head_cut(groups, config.heads / groups, ranks);
  const auto add = [&](const std::string& name, const Placement& placement) {
    put(layout.parameters[name], Axis::tensor, placement);
  };
  const std::string attention = "block.{layer}.attention.", mlp = "block.{layer}.mlp.";
  for (const char* part : {".weight", ".bias"}) {
    add(attention + "query" + part, shard(0, cut.query_unit * width));
    add(attention + "key" + part, shard(0, width, cut.repeat));
    add(attention + "value" + part, shard(0, width, cut.repeat));
    add(mlp + "gate" + part, shard(0));
    add(mlp + "up" + part, shard(0));
  }
  put(layout.cache, Axis::tensor, shard(1, 1, cut.repeat));
  add(attention + "output.weight", shard(1, cut.query_unit * width));
  add(mlp + "down.weight", shard(1));
  add("embedding.token.weight", shard(0));
  add("head.weight", shard(0));
}

// A rank may hold padded heads, whose queries and keys are zero vectors.
bool pads_heads(const ModelConfig& config, int32_t ranks) {
  const int64_t groups = config.key_value_heads_or_default();
  const HeadCut cut = head_cut(groups, config.heads / groups, ranks);
  return groups % (ranks / cut.repeat) != 0;
}

}  // namespace

HeadCut head_cut(int64_t groups, int64_t queries, int32_t ranks) {
  // The most ranks to a group that divide both the ranks and the group's queries and leave every group a
  // rank.
  HeadCut cut;
  const int64_t divisor = std::gcd(queries, int64_t{ranks});
  for (int64_t repeat = 1; repeat <= divisor; ++repeat) {
    if (divisor % repeat == 0 && ranks / repeat >= groups) cut.repeat = static_cast<uint16_t>(repeat);
  }
  cut.query_unit = static_cast<uint32_t>(queries / cut.repeat);
  return cut;
}

int64_t sequence_granule(const LayoutOptions& options) {
  const int64_t context = options.mesh.size(Axis::context);
  const int64_t tensor = options.sequence_parallel ? options.mesh.size(Axis::tensor) : 1;
  const int64_t pieces = context > 1 ? 2 * context : 1;
  return std::lcm(pieces, context * tensor);
}

const Placements& Layout::of_parameter(const std::string& name) const {
  static const Placements whole;
  auto known = parameters.find(name);
  if (const std::string block = "block."; known == parameters.end() && name.starts_with(block)) {
    known =
        parameters.find(block + "{layer}" + name.substr(std::min(name.find('.', block.size()), name.size())));
  }
  return known == parameters.end() ? whole : known->second;
}

Layout layout_of(const ModelConfig& config, const LayoutOptions& options) {
  Layout layout{.options = options, .residual = {}, .batch = {}, .cache = {}, .parameters = {}};
  const Mesh& mesh = options.mesh;
  for (const Axis axis : {Axis::replica, Axis::shard}) {
    if (mesh.size(axis) == 1) continue;
    put(layout.batch, axis, shard(0));
    put(layout.cache, axis, shard(0));
  }
  if (mesh.size(Axis::context) > 1) {
    Placement sequence = shard(1);
    sequence.pattern = ShardPattern::zigzag;
    put(layout.batch, Axis::context, sequence);
  }
  layout.residual = layout.batch;
  if (mesh.size(Axis::tensor) > 1) {
    if (options.sequence_parallel) put(layout.residual, Axis::tensor, shard(1));
    cut_parameters(layout, config);
    if (config.query_key_norm && config.norm_epsilon == 0 && pads_heads(config, mesh.size(Axis::tensor))) {
      throw_user_error(
          fmt::format("model.norm_epsilon is 0 and mesh.tensor {} does not divide the {} key/value heads",
                      mesh.size(Axis::tensor), config.key_value_heads_or_default()),
          "the norm of a padded head would divide by zero: give an epsilon above 0");
    }
  }
  return layout;
}

}  // namespace athanor
