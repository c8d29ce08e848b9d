#include "support/virtual_training.h"

#include <gtest/gtest.h>

#include "athanor/base/error.h"
#include "athanor/compile/assemble.h"
#include "athanor/compile/bucket_graphs.h"
#include "athanor/ir/layer_name.h"

namespace athanor {

namespace {

constexpr PrecisionPolicy fp64{DType::fp64, DType::fp64, DType::fp64};
const std::vector<Axis> token_axes{Axis::replica, Axis::shard, Axis::context};

void apply_decay(BucketTable& table, const OptimizerOptions& options) {
  for (BucketMember& member : table.members) {
    const bool decays = member.role == ParameterRole::matrix || member.role == ParameterRole::embedding;
    member.weight_decay = decays ? options.weight_decay : 0;
  }
}

int64_t offset_in(const BucketTable& table, const std::string& name) {
  for (const BucketMember& member : table.members) {
    if (member.name == name) return member.offset;
  }
  ATHANOR_ASSERT(false, "no {} in {}", name, table.name);
  return -1;
}

}  // namespace

VirtualTraining::VirtualTraining(const ModelConfig& config, const SegmentInputs& inputs,
                                 const TrainingOptions& options)
    : config_(config),
      inputs_(inputs.padded(sequence_granule(options.layout))),
      options_(options),
      layout_(layout_of(config, options.layout)) {
  Model model = build_model(config, {ModelPurpose::train, inputs_.samples, inputs_.sequence_length});
  EXPECT_EQ(model.blocks.size(), 1U);
  for (Graph* graph : {&model.embedding, &model.blocks.front(), &model.head}) {
    segments_.emplace_back(config, std::move(*graph), SegmentOptions{.layout = options.layout});
    for (const auto& [name, placements] : segments_.back().gradients()) {
      const auto [known, added] = gradients_.emplace(name, placements);
      EXPECT_EQ(known->second, placements) << name << ": its contributions must be alike to be added";
    }
  }
  ranks_ = VirtualRanks(Graph{}, layout_.mesh()).count();
  add_buckets();
  step_.seed = 9;
  step_.learning_rate = 1e-2;
}

void VirtualTraining::add_buckets() {
  const std::vector<BucketTable> tables = bucket_tables(config_);
  for (size_t t = 0; t < tables.size(); ++t) {
    Bucket bucket;
    bucket.whole = tables[t];
    apply_decay(bucket.whole, options_.optimizer);
    bucket.local = local_table(bucket.whole, layout_);
    bucket.layer = t == 0 || t + 1 == tables.size() ? -1 : static_cast<int64_t>(t) - 1;
    bucket.weights.assign(static_cast<size_t>(ranks_), {});
    for (const BucketMember& member : bucket.whole.members) {
      // Layers differ: what inputs_ has is of the block's template.
      std::string name = member.name;
      if (bucket.layer >= 0) name = "block.{layer}" + name.substr(name.find('.', 6));
      Whole whole = inputs_.values.at(name);
      for (double& value : whole.values) value *= 1 + 0.1 * static_cast<double>(bucket.layer + 1);
      Graph one;
      one.name = "one";
      one.add_value({.name = "w",
                     .dtype = DType::fp64,
                     .shape = storage_shape(whole.shape, layout_.of_parameter(member.name), layout_.mesh()),
                     .placements = layout_.of_parameter(member.name)});
      VirtualRanks ranks(one, layout_.mesh());
      ranks.set("w", whole);
      for (int rank = 0; rank < ranks_; ++rank) {
        const std::vector<double> mine = ranks.get_local(rank, "w");
        auto& weights = bucket.weights[static_cast<size_t>(rank)];
        weights.insert(weights.end(), mine.begin(), mine.end());
      }
    }
    buckets_.push_back(std::move(bucket));
  }
}

VirtualTraining::Bucket& VirtualTraining::bucket_of(const std::string& parameter, int64_t layer) {
  const std::string name = fill_layer(parameter, layer);
  for (Bucket& bucket : buckets_) {
    for (const BucketMember& member : bucket.local.members) {
      if (member.name == name) return bucket;
    }
  }
  ATHANOR_ASSERT(false, "no parameter {}", name);
  return buckets_.front();
}

// Runs a graph with a layer's weights, the batch, and what earlier graphs left; `renamed`: the name that a
// value has there.
VirtualRanks VirtualTraining::run(const Graph& graph, int64_t layer,
                                  const std::vector<const VirtualRanks*>& given,
                                  const std::map<std::string, std::string>& renamed) {
  VirtualRanks ranks(graph, layout_.mesh());
  ranks.set_layer(layer);
  for (const ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    if (value.role == Role::parameter) {
      const std::string first = split_names(value.name).front();
      const Bucket& bucket = bucket_of(first, layer);
      const int64_t offset = offset_in(bucket.local, fill_layer(first, layer));
      for (int rank = 0; rank < ranks_; ++rank) {
        const auto begin = bucket.weights[static_cast<size_t>(rank)].begin() + offset;
        ranks.set_local(rank, value.name, {begin, begin + value.shape.elements()});
      }
    } else if (value.role == Role::batch) {
      ranks.set(value.name, inputs_.values.at(value.name));
    } else if (value.name == "valid_tokens") {
      for (int rank = 0; rank < ranks_; ++rank) {
        ranks.set_local(rank, value.name, valid_tokens_[static_cast<size_t>(rank)]);
      }
    } else {
      const auto other = renamed.find(value.name);
      const std::string name = other == renamed.end() ? value.name : other->second;
      bool found = false;
      for (const VirtualRanks* from : given) {
        if (found || !from->has(name)) continue;
        ranks.copy(value.name, *from, name);
        found = true;
      }
      EXPECT_TRUE(found) << graph.name << " is given no " << name;
    }
  }
  ranks.run(step_);
  return ranks;
}

void VirtualTraining::add_gradients(const VirtualRanks& ranks, int64_t layer) {
  for (const ValueId id : ranks.graph().outputs) {
    const Value& value = ranks.graph().value(id);
    if (value.role != Role::parameter_gradient) continue;
    const std::string first = split_names(value.name.substr(2)).front();
    Bucket& bucket = bucket_of(first, layer);
    const auto offset = static_cast<size_t>(offset_in(bucket.local, fill_layer(first, layer)));
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::vector<double> mine = ranks.get_local(rank, value.name);
      auto& total = bucket.gradients[static_cast<size_t>(rank)];
      for (size_t i = 0; i < mine.size(); ++i) total[offset + i] += mine[i];
    }
  }
}

void VirtualTraining::run_segments() {
  const ShardedSegment &embedding = segments_[0], &block = segments_[1], &head = segments_[2];
  for (Bucket& bucket : buckets_) {
    bucket.gradients.assign(static_cast<size_t>(ranks_),
                            std::vector<double>(static_cast<size_t>(bucket.local.length()), 0));
  }
  std::vector<VirtualRanks> forward;
  forward.push_back(run(embedding.forward(), -1, {}, {}));
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    forward.push_back(run(block.forward(), layer, {&forward.back()}, {{"residual_in", "residual_out"}}));
  }
  const VirtualRanks last = run(head.forward(), -1, {&forward.back()}, {{"residual_in", "residual_out"}});
  add_gradients(last, -1);
  loss_.assign(static_cast<size_t>(ranks_), {});
  for (int rank = 0; rank < ranks_; ++rank) loss_[static_cast<size_t>(rank)] = last.get_local(rank, "loss");
  std::vector<VirtualRanks> backward{last};
  for (int64_t layer = config_.layers; layer-- > 0;) {
    // What forward saved, and the gradient that the later segment gave.
    backward.push_back(run(block.backward(), layer,
                           {&forward[static_cast<size_t>(layer) + 1], &backward.back()},
                           {{"d.residual_out", "d.residual_in"}}));
    add_gradients(backward.back(), layer);
  }
  const VirtualRanks first = run(embedding.backward(), -1, {&forward.front(), &backward.back()},
                                 {{"d.residual_out", "d.residual_in"}});
  add_gradients(first, -1);
}

VirtualTraining::Local VirtualTraining::summed(const std::string& name, const Local& parts,
                                               const std::vector<Axis>& axes) const {
  const Graph graph = sum_graph(name, static_cast<int64_t>(parts.front().size()), axes, layout_);
  verify(graph);
  VirtualRanks ranks(graph, layout_.mesh());
  for (int rank = 0; rank < ranks_; ++rank) {
    ranks.set_local(rank, name + ".part", parts[static_cast<size_t>(rank)]);
  }
  ranks.run(step_);
  Local result;
  for (int rank = 0; rank < ranks_; ++rank) {
    result.push_back(ranks.get_local(rank, graph.value(graph.outputs[0]).name));
  }
  return result;
}

Graph VirtualTraining::on_part(Graph graph) const {
  if (options_.cut_buckets) graph = on_bucket_part(std::move(graph), layout_);
  verify(graph);
  return graph;
}

std::vector<Axis> VirtualTraining::norm_axes() const {
  return options_.cut_buckets ? std::vector<Axis>{Axis::shard, Axis::tensor}
                              : std::vector<Axis>{Axis::tensor};
}

void VirtualTraining::reduce() {
  for (Bucket& bucket : buckets_) {
    std::map<std::string, Placements> gradients;
    for (const auto& [name, placements] : gradients_) gradients[fill_layer(name, bucket.layer)] = placements;
    bucket.reduced = bucket.gradients;
    const auto run_on_bucket = [&](const Graph& graph) {
      verify(graph);
      EXPECT_EQ(parse_graph(to_text(graph)), graph);
      VirtualRanks ranks(graph, layout_.mesh());
      for (int rank = 0; rank < ranks_; ++rank) {
        ranks.set_local(rank, graph.value(graph.inputs[0]).name, bucket.reduced[static_cast<size_t>(rank)]);
      }
      ranks.run(step_);
      bucket.reduced.clear();
      for (int rank = 0; rank < ranks_; ++rank) {
        bucket.reduced.push_back(ranks.get_local(rank, graph.value(graph.outputs[0]).name));
      }
    };
    if (options_.cut_buckets)
      run_on_bucket(scatter_bucket_graph(bucket.local, gradients, layout_, DType::fp64));
    run_on_bucket(sum_bucket_graph(bucket.local, gradients, layout_, options_.cut_buckets, DType::fp64));
    const Graph norms_graph = on_part(squared_norms_graph(bucket.local, fp64));
    VirtualRanks norms(norms_graph, layout_.mesh());
    bucket.norms.clear();
    for (int rank = 0; rank < ranks_; ++rank) {
      norms.set_local(rank, "gradients." + bucket.local.name, bucket.reduced[static_cast<size_t>(rank)]);
    }
    norms.run(step_);
    for (int rank = 0; rank < ranks_; ++rank) bucket.norms.push_back(norms.get_local(rank, "norms"));
  }
}

VirtualTraining::Local VirtualTraining::concatenated(Local Bucket::* member) const {
  Local all(static_cast<size_t>(ranks_));
  for (const Bucket& bucket : buckets_) {
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const auto& mine = (bucket.*member)[rank];
      all[rank].insert(all[rank].end(), mine.begin(), mine.end());
    }
  }
  return all;
}

double VirtualTraining::clip() {
  const Local norms = summed("norms", concatenated(&Bucket::norms), norm_axes());
  const Local loss = summed("loss", loss_, token_axes);
  VirtualRanks ranks(clip_graph(static_cast<int64_t>(norms.front().size()), options_.optimizer),
                     layout_.mesh());
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto at = static_cast<size_t>(rank);
    ranks.set_local(rank, "norms", norms[at]);
    ranks.set_local(rank, "valid_tokens", valid_tokens_[at]);
    ranks.set_local(rank, "loss", loss[at]);
  }
  ranks.run(step_);
  clip_factor_.clear();
  skip_.clear();
  for (int rank = 0; rank < ranks_; ++rank) {
    clip_factor_.push_back(ranks.get_local(rank, "clip_factor"));
    skip_.push_back(ranks.get_local(rank, "skip"));
    // Every rank commits the same step.
    EXPECT_EQ(clip_factor_.back(), clip_factor_.front());
    EXPECT_EQ(skip_.back(), skip_.front());
  }
  loss_ = loss;
  return ranks.get_local(0, "gradient_norm").front();
}

void VirtualTraining::update() {
  const bool lamb = options_.optimizer.kind == OptimizerKind::lamb;
  const auto give = [&](VirtualRanks& ranks, Bucket& bucket, const Local& update_norms) {
    const size_t part = bucket.reduced.front().size();
    for (const ValueId id : ranks.graph().inputs) {
      const std::string& name = ranks.graph().value(id).name;
      const std::string kind = name.substr(0, name.find('.'));
      for (int rank = 0; rank < ranks_; ++rank) {
        const auto at = static_cast<size_t>(rank);
        if (name == "clip_factor") {
          ranks.set_local(rank, name, clip_factor_[at]);
        } else if (name == "skip") {
          ranks.set_local(rank, name, skip_[at]);
        } else if (name == "update_norms") {
          ranks.set_local(rank, name, update_norms[at]);
        } else if (kind == "gradients") {
          ranks.set_local(rank, name, bucket.reduced[at]);
        } else {
          Local& state = bucket.state[kind];
          if (state.empty()) {
            state.assign(static_cast<size_t>(ranks_), std::vector<double>(part, 0));
            if (kind == "master") {
              for (int r = 0; r < ranks_; ++r) {
                const auto& weights = bucket.weights[static_cast<size_t>(r)];
                const size_t first =
                    options_.cut_buckets
                        ? part * static_cast<size_t>(coordinate(ranks.coordinates(r), Axis::shard))
                        : 0;
                for (size_t i = 0; i < part && first + i < weights.size(); ++i) {
                  state[static_cast<size_t>(r)][i] = weights[first + i];
                }
              }
            }
          }
          ranks.set_local(rank, name, state[at]);
        }
      }
    }
  };
  if (lamb) {
    for (Bucket& bucket : buckets_) {
      VirtualRanks ranks(on_part(lamb_norms_graph(bucket.local, options_.optimizer, fp64)), layout_.mesh());
      give(ranks, bucket, {});
      ranks.run(step_);
      Local norms;
      for (int rank = 0; rank < ranks_; ++rank) norms.push_back(ranks.get_local(rank, "update_norms"));
      bucket.update_norms = summed("update_norms", norms, norm_axes());
    }
  }
  for (Bucket& bucket : buckets_) {
    const Graph graph = on_part(optimizer_graph(bucket.local, options_.optimizer, fp64));
    VirtualRanks ranks(graph, layout_.mesh());
    give(ranks, bucket, bucket.update_norms);
    ranks.run(step_);
    for (auto& [kind, state] : bucket.state) {
      for (int rank = 0; rank < ranks_; ++rank) {
        state[static_cast<size_t>(rank)] = ranks.get_local(rank, kind + "." + bucket.local.name);
      }
    }
    bucket.weights = bucket.state.at("master");
    if (!options_.cut_buckets || layout_.mesh().size(Axis::shard) == 1) continue;
    const Graph gather = gather_bucket_graph(bucket.local, layout_, DType::fp64);
    verify(gather);
    VirtualRanks whole(gather, layout_.mesh());
    for (int rank = 0; rank < ranks_; ++rank) {
      whole.set_local(rank, "part." + bucket.local.name, bucket.weights[static_cast<size_t>(rank)]);
    }
    whole.run(step_);
    for (int rank = 0; rank < ranks_; ++rank) {
      bucket.weights[static_cast<size_t>(rank)] = whole.get_local(rank, "working." + bucket.local.name);
    }
  }
}

StepOutcome VirtualTraining::step() {
  // The tokens that count are known before the first backward.
  const Layout& layout = layout_;
  const Whole& labels = inputs_.values.at("labels");
  const Shape local = storage_shape(labels.shape, layout.batch, layout.mesh());
  Graph count = count_valid_graph(local[0], local[1]);
  count.value(count.find("labels")).placements = layout.batch;
  VirtualRanks counting(count, layout.mesh());
  counting.set("labels", labels);
  counting.run(step_);
  Local counted;
  for (int rank = 0; rank < ranks_; ++rank) counted.push_back(counting.get_local(rank, "valid_tokens"));
  valid_tokens_ = summed("valid_tokens", counted, token_axes);

  run_segments();
  reduce();
  StepOutcome outcome;
  outcome.gradient_norm = clip();
  outcome.valid_tokens = valid_tokens_.front().front();
  outcome.loss = loss_.front().front() / outcome.valid_tokens;
  update();
  ++step_.step;
  ++step_.optimizer_step;
  return outcome;
}

Wholes VirtualTraining::weights() const {
  Wholes result;
  for (const Bucket& bucket : buckets_) {
    for (size_t m = 0; m < bucket.whole.members.size(); ++m) {
      const BucketMember &whole = bucket.whole.members[m], &local = bucket.local.members[m];
      Graph one;
      one.name = "one";
      one.add_value({.name = whole.name,
                     .dtype = DType::fp64,
                     .shape = local.shape,
                     .placements = local.placements,
                     .role = Role::parameter_gradient});  // padding must be zero
      VirtualRanks ranks(one, layout_.mesh());
      for (int rank = 0; rank < ranks_; ++rank) {
        const auto begin = bucket.weights[static_cast<size_t>(rank)].begin() + local.offset;
        ranks.set_local(rank, whole.name, {begin, begin + local.length()});
      }
      result[whole.name] = ranks.get(whole.name, whole.shape);
    }
  }
  return result;
}

}  // namespace athanor
