// The layout of a model family: what its parameters and its residual stream are on a mesh of ranks. It stands
// beside the forward graphs and apart from them; the sharding pass derives everything else.
//
// Called by compile, train (which part of a parameter a rank initialises and saves), checkpoints.
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "athanor/ir/placement.h"
#include "athanor/model/config.h"

namespace athanor {

// How attention sees keys of other ranks when axis `context` cuts the sequence.
enum class ContextForm : uint8_t {
  ring,        // keys and values travel around the axis, results are merged
  all_to_all,  // heads are cut instead of the sequence while attention runs
};

struct LayoutOptions {
  Mesh mesh;
  bool sequence_parallel = false;  // the residual stream is cut along the sequence on axis `tensor` too
  ContextForm context_form = ContextForm::ring;
};

struct Layout {
  LayoutOptions options;
  // Of values [B,S,..] outside of products and attention: the residual stream and what is computed from it
  // token by token.
  Placements residual;
  // Of the batch as ranks load it: [B,S], and [B] without dim 1.
  Placements batch;
  // Of the key-value cache of a layer [rows, K, slots, E].
  Placements cache;
  // By the name of the bucket's member with "{layer}". A parameter that is not here is whole.
  std::map<std::string, Placements> parameters;

  const Mesh& mesh() const { return options.mesh; }
  const Placements& of_parameter(const std::string& name) const;  // "{layer}" filled in or not
};

// User error when the model cannot be laid out so.
Layout layout_of(const ModelConfig& config, const LayoutOptions& options);

// Sequence lengths must be multiples of this: it gives each rank equal, whole pieces. Shorter sequences are
// filled up with tokens of a document of their own whose labels are ignored.
int64_t sequence_granule(const LayoutOptions& options);

// How heads are cut over `ranks`: a model of `groups` key/value heads, each of which serves `queries` query
// heads. Every rank gets whole groups; where there are more ranks than groups, neighbours may share a group
// and divide its query heads.
struct HeadCut {
  uint16_t repeat = 1;      // ranks that share a group
  uint32_t query_unit = 1;  // query heads that stay together
};
HeadCut head_cut(int64_t groups, int64_t queries, int32_t ranks);

}  // namespace athanor
