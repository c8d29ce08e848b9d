#include "support/sharded_segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "athanor/base/error.h"
#include "athanor/base/labels.h"
#include "athanor/base/philox.h"

namespace athanor {

namespace {

// Uniform in [low, high), the same for the same name.
Whole noise(const std::string& name, Shape shape, double low, double high) {
  Whole whole{shape, {}};
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const uint64_t word = mix64(stable_hash(name) + static_cast<uint64_t>(i));
    whole.values.push_back(low + (high - low) * static_cast<double>(word >> 11) * 0x1p-53);
  }
  return whole;
}

}  // namespace

std::vector<std::string> split_names(std::string names) {
  std::vector<std::string> list;
  for (size_t at = 0; (at = names.find('+')) != std::string::npos; names.erase(0, at + 1)) {
    list.push_back(names.substr(0, at));
  }
  list.push_back(names);
  return list;
}

ShardedSegment::ShardedSegment(const ModelConfig& config, Graph graph, const SegmentOptions& options)
    : layout_(layout_of(config, options.layout)) {
  const bool head = graph.name == "head";
  Segment segment{std::move(graph), 0};
  segment.forward_count = static_cast<int64_t>(segment.graph.operations.size());
  const auto pass = [&](Segment next) {
    segment = std::move(next);
    verify(segment.graph);
  };
  if (options.train) pass(differentiate(std::move(segment)));
  for (const ValueId id : segment.graph.outputs) {
    const Value& value = segment.graph.value(id);
    shapes_[value.role == Role::parameter_gradient ? value.name.substr(2) : value.name] = value.shape;
  }
  pass(shard(std::move(segment), layout_));
  gradients_ = gradient_placements(segment.graph);
  pass(merge_products(std::move(segment)));
  pass(fuse(std::move(segment)));
  pass(assign_precision(std::move(segment), {DType::fp64, DType::fp64, DType::fp64}));
  EXPECT_EQ(parse_graph(to_text(segment.graph)), segment.graph);
  if (head) {
    pass(chunk_head(std::move(segment), options.head_chunk_tokens));
    forward_ = std::move(segment.graph);
    return;
  }
  if (!options.train) {
    forward_ = std::move(segment.graph);
    return;
  }
  pass(recompute(std::move(segment), options.recompute));
  SplitSegment parts = split(segment);
  verify(parts.forward);
  verify(parts.backward);
  forward_ = std::move(parts.forward);
  backward_ = std::move(parts.backward);
}

void ShardedSegment::set_inputs(VirtualRanks& ranks, const Wholes& inputs, const VirtualRanks* saved) const {
  for (const ValueId id : ranks.graph().inputs) {
    const Value& value = ranks.graph().value(id);
    if (saved != nullptr && !inputs.contains(split_names(value.name).front())) {
      ranks.copy(value.name, *saved);
      continue;
    }
    std::vector<Whole> wholes;
    std::vector<Placements> placements;
    for (const std::string& name : split_names(value.name)) {
      wholes.push_back(inputs.at(name));
      placements.push_back(value.role == Role::parameter ? layout_.of_parameter(name) : value.placements);
    }
    ranks.set(value.name, wholes, placements);
  }
}

void ShardedSegment::collect(const VirtualRanks& ranks, Wholes& outputs) const {
  for (const ValueId id : ranks.graph().outputs) {
    const Value& value = ranks.graph().value(id);
    if (value.role != Role::parameter_gradient) {
      if (shapes_.contains(value.name)) outputs[value.name] = ranks.get(value.name, shapes_.at(value.name));
      continue;
    }
    int64_t first = 0;
    for (const std::string& name : split_names(value.name.substr(2))) {
      const Placements& placements = gradients_.at(name);
      const Shape& shape = shapes_.at(name);
      outputs["d." + name] = ranks.get(value.name, shape, placements, first);
      first += storage_shape(shape, placements, layout_.mesh()).elements();
    }
  }
}

Wholes ShardedSegment::run(const Wholes& inputs, const StepInputs& step) {
  Wholes outputs;
  VirtualRanks forward(forward_, layout_.mesh());
  set_inputs(forward, inputs, nullptr);
  forward.run(step);
  collect(forward, outputs);
  const auto note = [&](const VirtualRanks& ranks) {
    for (int kind = 0; kind < operation_kind_count; ++kind) {
      executions_[static_cast<OperationKind>(kind)] += ranks.executions(static_cast<OperationKind>(kind));
    }
  };
  note(forward);
  if (backward_.operations.empty()) return outputs;
  VirtualRanks backward(backward_, layout_.mesh());
  set_inputs(backward, inputs, &forward);
  backward.run(step);
  collect(backward, outputs);
  note(backward);
  return outputs;
}

int64_t ShardedSegment::executions(OperationKind kind) const {
  const auto known = executions_.find(kind);
  return known == executions_.end() ? 0 : known->second;
}

SegmentInputs::SegmentInputs(const ModelConfig& config, int64_t sample_count, int64_t length)
    : samples(sample_count), sequence_length(length) {
  for (const BucketTable& table : build_model(config, {}).bucket_kinds) {
    for (const BucketMember& member : table.members) {
      const bool norm = member.role == ParameterRole::norm;
      values[member.name] = noise(member.name, member.shape, norm ? 0.5 : -0.5, norm ? 1.5 : 0.5);
    }
  }
  const Shape tokens{samples, length}, residual{samples, length, config.width};
  values["residual_in"] = noise("residual_in", residual, -1, 1);
  values["d.residual_out"] = noise("d.residual_out", residual, -1, 1);
  values["token_ids"] = noise("token_ids", tokens, 0, static_cast<double>(config.vocabulary));
  values["labels"] = noise("labels", tokens, 0, static_cast<double>(config.vocabulary));
  Whole &positions = values["positions"], &documents = values["documents"], &indices = values["indices"];
  positions = documents = indices = Whole{tokens, {}};
  values["sample_ids"] = noise("sample_ids", {samples}, 0, 1e12);
  for (Whole* whole : {&values["token_ids"], &values["labels"], &values["sample_ids"]}) {
    for (double& value : whole->values) value = std::floor(value);
  }
  double valid = 0;
  for (int64_t b = 0; b < samples; ++b) {
    // Documents of unlike lengths; the last sample is one document.
    const int64_t first = b + 1 == samples ? length : std::min(length, 3 + b);
    for (int64_t s = 0; s < length; ++s) {
      indices.values.push_back(static_cast<double>(s));
      positions.values.push_back(static_cast<double>(s < first ? s : s - first));
      documents.values.push_back(s < first ? 0 : 1);
      double& label = values["labels"].values[static_cast<size_t>(b * length + s)];
      if ((b + s) % 4 == 1) label = ignored_label;
      valid += label == ignored_label ? 0 : 1;
    }
  }
  values["valid_tokens"] = {{1}, {valid}};
}

SegmentInputs SegmentInputs::padded(int64_t granule) const {
  SegmentInputs result = *this;
  result.sequence_length = (sequence_length + granule - 1) / granule * granule;
  for (auto& [name, whole] : result.values) {
    if (whole.shape.rank() < 2 || whole.shape[0] != samples || whole.shape[1] != sequence_length) continue;
    Whole wide{whole.shape, {}};
    wide.shape.set(1, result.sequence_length);
    const int64_t width = whole.shape.elements_per_token();
    for (int64_t b = 0; b < samples; ++b) {
      const auto begin = whole.values.begin() + b * sequence_length * width;
      wide.values.insert(wide.values.end(), begin, begin + sequence_length * width);
      for (int64_t s = sequence_length; s < result.sequence_length; ++s) {
        const double filler = name == "labels"        ? ignored_label
                              : name == "documents"   ? 2
                              : name == "positions"   ? static_cast<double>(s - sequence_length)
                              : name == "indices"     ? static_cast<double>(s)
                              : name == "residual_in" ? 0.7
                              : name == "token_ids"   ? 1
                                                      : 0;
        wide.values.insert(wide.values.end(), static_cast<size_t>(width), filler);
      }
    }
    whole = std::move(wide);
  }
  return result;
}

double difference(const Wholes& expected, const Wholes& actual, std::string* worst) {
  const auto is_gradient = [](const std::string& name) {
    return name.starts_with("d.") && name != "d.residual_in";
  };
  double largest_gradient = 0;
  for (const auto& [name, whole] : expected) {
    for (const double value : whole.values) {
      if (is_gradient(name)) largest_gradient = std::max(largest_gradient, std::abs(value));
    }
  }
  double result = 0;
  for (const auto& [name, whole] : expected) {
    const auto other = actual.find(name);
    if (other == actual.end()) {
      if (worst != nullptr) *worst = name + " is missing";
      return INFINITY;
    }
    // Values of tokens: those that both have.
    const Shape &shape = whole.shape, &wide = other->second.shape;
    const bool tokens = shape.rank() == 3 && wide.rank() == 3 && shape[1] < wide[1];
    double scale = is_gradient(name) ? largest_gradient : 0;
    for (const double value : whole.values) scale = std::max(scale, is_gradient(name) ? 0 : std::abs(value));
    for (size_t i = 0; i < whole.values.size(); ++i) {
      auto at = static_cast<int64_t>(i);
      if (tokens) {
        const int64_t row = shape[1] * shape[2];
        at = at / row * wide[1] * wide[2] + at % row;
      }
      const double error =
          std::abs(whole.values[i] - other->second.values[static_cast<size_t>(at)]) / (scale > 0 ? scale : 1);
      if (error > result || std::isnan(error)) {
        result = std::isnan(error) ? INFINITY : error;
        if (worst != nullptr) *worst = fmt::format("{}[{}]", name, i);
      }
    }
  }
  return result;
}

}  // namespace athanor
