// Graphs for the tests of this room. Only tests include it. Thread safety: pure functions.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "athanor/ir/graph.h"

namespace athanor {

// Adds values by name, and operations whose outputs are new values.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string name) { graph.name = std::move(name); }

  ValueId value(std::string name, Shape shape, Role role = Role::activation, DType dtype = DType::fp32) {
    return graph.add_value(
        {.name = std::move(name), .dtype = dtype, .shape = shape, .placements = {}, .role = role});
  }
  ValueId input(std::string name, Shape shape, Role role, DType dtype = DType::fp32) {
    graph.inputs.push_back(value(std::move(name), shape, role, dtype));
    return graph.inputs.back();
  }
  Operation& add(OperationKind kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                 Attributes attributes = {}, Part part = Part::forward) {
    return graph.add_operation(kind, std::move(inputs), std::move(outputs), std::move(attributes), part);
  }

  Graph graph;
};

// A product, a norm and their gradients, a head in a loop region, and an optimizer step: every structure that
// a graph can hold, and it verifies. 2 samples of 4 tokens, width 8, vocabulary 11, chunks of 3 rows.
inline Graph make_example_graph() {
  using enum OperationKind;
  GraphBuilder b("example");
  b.graph.tables.push_back(
      {.name = "block",
       .members = {{.name = "block.{layer}.up.weight",
                    .shape = {8, 8},
                    .weight_decay = 0.1,
                    .initial_deviation = 0.02},
                   {.name = "block.{layer}.up.bias", .shape = {8}, .role = ParameterRole::bias, .offset = 64},
                   {.name = "head.weight", .shape = {11, 8}, .offset = 72, .learning_rate_factor = 0.5}}});
  b.graph.regions.push_back({.name = "logits", .rows = 8, .chunk_rows = 3});

  const ValueId x = b.input("x", {2, 4, 8}, Role::residual);
  const ValueId labels = b.input("labels", {2, 4}, Role::batch, DType::int32);
  const ValueId up = b.input("block.{layer}.up.weight", {8, 8}, Role::parameter);
  const ValueId bias = b.input("block.{layer}.up.bias", {8}, Role::parameter);
  const ValueId norm = b.input("norm.weight", {8}, Role::parameter);
  const ValueId head = b.input("head.weight", {11, 8}, Role::parameter);
  const ValueId valid = b.input("valid_tokens", {1}, Role::scalar, DType::fp64);
  const ValueId bucket = b.input("gradient.bucket", {160}, Role::bucket_gradient);
  const ValueId clip_factor = b.input("clip_factor", {1}, Role::scalar, DType::fp64);
  const ValueId skip = b.input("skip", {1}, Role::scalar, DType::fp64);
  const ValueId master = b.input("master", {160}, Role::master);
  const ValueId first = b.input("first_moment", {160}, Role::optimizer_state);
  const ValueId second = b.input("second_moment", {160}, Role::optimizer_state);

  const ValueId n = b.value("normed", {2, 4, 8}), rstd = b.value("rstd", {2, 4}, Role::statistic);
  const ValueId y = b.value("up", {2, 4, 8}), a = b.value("activated", {2, 4, 8});
  b.add(rms_norm, {x, norm}, {n, rstd}, {.epsilon = 1e-6});
  b.add(matmul, {n, up, bias}, {y, a}, {.activation = Activation::gelu});

  const ValueId rows = b.value("rows", {1, 3, 8}),
                row_labels = b.value("row_labels", {1, 3}, Role::batch, DType::int32);
  const ValueId logits = b.value("logits", {1, 3, 11}), loss = b.value("loss", {1, 3}, Role::statistic);
  const ValueId dlogits = b.value("dlogits", {1, 3, 11}, Role::activation_gradient);
  const ValueId drows = b.value("drows", {1, 3, 8}, Role::activation_gradient);
  const ValueId da = b.value("dactivated", {2, 4, 8}, Role::activation_gradient);
  const ValueId dhead = b.value("dhead", {11, 8}, Role::parameter_gradient);
  const ValueId total = b.value("total_loss", {1}, Role::scalar, DType::fp64);
  b.add(chunk, {a}, {rows}, {.region = 0}).region = 0;
  b.add(chunk, {labels}, {row_labels}, {.region = 0}).region = 0;
  b.add(matmul, {rows, head}, {logits}).region = 0;
  b.add(cross_entropy, {logits, row_labels, valid}, {loss, dlogits}).region = 0;
  b.add(OperationKind::sum, {loss}, {total}).region = 0;
  b.add(matmul_input_gradient, {dlogits, head}, {drows}, {}, Part::input_gradient).region = 0;
  b.add(collect, {drows}, {da}, {.region = 0}, Part::input_gradient).region = 0;
  b.add(matmul_weight_gradient, {dlogits, rows}, {dhead}, {}, Part::weight_gradient).region = 0;

  const ValueId dy = b.value("dup", {2, 4, 8}, Role::activation_gradient);
  const ValueId dn = b.value("dnormed", {2, 4, 8}, Role::activation_gradient);
  const ValueId dup = b.value("dup.weight", {8, 8}, Role::parameter_gradient);
  const ValueId dx = b.value("dx", {2, 4, 8}, Role::residual_gradient);
  b.add(gelu_gradient, {da, y}, {dy}, {}, Part::input_gradient);
  b.add(matmul_input_gradient, {dy, up}, {dn}, {}, Part::input_gradient);
  b.add(matmul_weight_gradient, {dy, n}, {dup}, {}, Part::weight_gradient);
  b.add(matmul_weight_gradient, {dn, x}, {dup}, {}, Part::weight_gradient);  // a second contribution
  b.add(rms_norm_input_gradient, {dn, x, norm, rstd, da}, {dx}, {}, Part::input_gradient);
  b.add(adamw, {bucket, clip_factor, skip}, {master, first, second}, {.table = 0, .beta2 = 0.99},
        Part::update);
  b.graph.outputs = {dx, dup, dhead, total, master, first, second};
  return std::move(b.graph);
}

// In-range ids, and otherwise arbitrary: odd names, attributes, placements, orders. Most do not verify.
inline Graph make_random_graph(std::mt19937_64& random) {
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
  };
  const auto coin = [&] { return below(2) == 0; };
  const auto real = [&] {
    return coin() ? static_cast<double>(below(1000)) / 7 : std::bit_cast<double>((random() >> 2) | 1);
  };
  const auto name = [&] {
    static const std::vector<std::string> parts = {
        "a", "b1", "block.{layer}.", " ", "\"", "\\", "\n", "%3", "-", "=", ":", ",", "(", "[", "}", "\t"};
    std::string text;
    for (int64_t i = below(5); i >= 0; --i)
      text += parts[static_cast<size_t>(below(static_cast<int64_t>(parts.size())))];
    return text;
  };
  const auto shape = [&] {
    Shape result;
    for (int64_t i = below(Shape::max_rank + 1); i > 0; --i) {
      result.append(below(3) == 0 ? below(3) : below(900));
      if (below(6) == 0) result.set_bounded(result.rank() - 1);
    }
    return result;
  };
  const auto placements = [&] {
    Placements result;
    for (Placement& placement : result) {
      const int64_t choice = below(8);
      if (choice == 0) {
        placement = {.kind = PlacementKind::partial, .reduction = coin() ? Reduction::sum : Reduction::max};
      } else if (choice == 1) {
        placement = {.kind = PlacementKind::shard,
                     .dim = static_cast<uint8_t>(below(Shape::max_rank)),
                     .pattern = coin() ? ShardPattern::zigzag : ShardPattern::contiguous,
                     .repeat = static_cast<uint16_t>(1 + below(3)),
                     .unit = static_cast<uint32_t>(1 + below(9)),
                     .repeats_partial = coin(),
                     .inner = coin()};
      }
    }
    return result;
  };
  Graph graph;
  graph.name = name();
  for (int64_t i = below(3); i > 0; --i) {
    BucketTable table{.name = name(), .members = {}};
    for (int64_t j = below(4); j > 0; --j) {
      table.members.push_back({.name = name(),
                               .shape = shape(),
                               .role = static_cast<ParameterRole>(below(4)),
                               .offset = below(1000),
                               .weight_decay = coin() ? 0 : real(),
                               .learning_rate_factor = coin() ? 1 : real(),
                               .initial_mean = coin() ? 0 : real(),
                               .initial_deviation = coin() ? 0 : real(),
                               .placements = placements()});
    }
    graph.tables.push_back(table);
  }
  for (int64_t i = below(3); i > 0; --i) {
    graph.regions.push_back({.name = name(), .rows = below(100), .chunk_rows = below(100)});
  }
  const int64_t values = 1 + below(12);
  for (int64_t i = 0; i < values; ++i) {
    graph.add_value({.name = name(),
                     .dtype = static_cast<DType>(below(dtype_count)),
                     .shape = shape(),
                     .placements = placements(),
                     .role = static_cast<Role>(below(role_count))});
  }
  const auto ids = [&](int64_t count) {
    std::vector<ValueId> list;
    for (; count > 0; --count) list.push_back(static_cast<ValueId>(below(values + 1)) - 1);
    return list;
  };
  for (int64_t i = below(4); i > 0; --i) graph.inputs.push_back(static_cast<ValueId>(below(values)));
  for (int64_t i = below(4); i > 0; --i) graph.outputs.push_back(static_cast<ValueId>(below(values)));
  for (int64_t i = below(12); i > 0; --i) {
    Operation operation{.attributes = {}, .inputs = ids(below(5)), .outputs = ids(below(4))};
    operation.kind = static_cast<OperationKind>(below(operation_kind_count));
    operation.part = static_cast<Part>(below(4));
    if (!graph.regions.empty() && coin()) {
      operation.region = static_cast<int32_t>(below(static_cast<int64_t>(graph.regions.size())));
    }
    Attributes all;
    for (double Attributes::* member :
         {&Attributes::epsilon, &Attributes::scale, &Attributes::probability, &Attributes::theta,
          &Attributes::rope_factor, &Attributes::rope_low, &Attributes::rope_high,
          &Attributes::label_smoothing, &Attributes::z_loss, &Attributes::soft_cap, &Attributes::beta1,
          &Attributes::beta2, &Attributes::momentum, &Attributes::maximum_norm, &Attributes::average_decay,
          &Attributes::trust_low, &Attributes::trust_high}) {
      if (coin()) all.*member = real();
    }
    for (int64_t Attributes::* member : {&Attributes::rope_original, &Attributes::window, &Attributes::offset,
                                         &Attributes::region, &Attributes::table}) {
      if (coin()) all.*member = below(100000) - 50000;
    }
    all.extent = below(1000);
    all.ranks = static_cast<int32_t>(below(9));
    all.axis = static_cast<Axis>(below(axis_count));
    all.from = placements()[0];
    all.to = placements()[1];
    all.inverse = coin();
    all.nesterov = coin();
    all.activation = coin() ? Activation::gelu : Activation::none;
    all.name = coin() ? "" : name();
    // Only what the kind has is printed.
    const FieldMask mask = row_of(operation.kind).fields;
    const auto take = [&](Field field, auto member) {
      if ((mask & mask_of(field)) != 0) operation.attributes.*member = all.*member;
    };
    take(Field::epsilon, &Attributes::epsilon);
    take(Field::scale, &Attributes::scale);
    take(Field::probability, &Attributes::probability);
    take(Field::theta, &Attributes::theta);
    take(Field::rope_factor, &Attributes::rope_factor);
    take(Field::rope_low, &Attributes::rope_low);
    take(Field::rope_high, &Attributes::rope_high);
    take(Field::rope_original, &Attributes::rope_original);
    take(Field::inverse, &Attributes::inverse);
    take(Field::window, &Attributes::window);
    take(Field::label_smoothing, &Attributes::label_smoothing);
    take(Field::z_loss, &Attributes::z_loss);
    take(Field::soft_cap, &Attributes::soft_cap);
    take(Field::offset, &Attributes::offset);
    take(Field::region, &Attributes::region);
    take(Field::table, &Attributes::table);
    take(Field::activation, &Attributes::activation);
    take(Field::beta1, &Attributes::beta1);
    take(Field::beta2, &Attributes::beta2);
    take(Field::momentum, &Attributes::momentum);
    take(Field::maximum_norm, &Attributes::maximum_norm);
    take(Field::average_decay, &Attributes::average_decay);
    take(Field::trust_low, &Attributes::trust_low);
    take(Field::trust_high, &Attributes::trust_high);
    take(Field::nesterov, &Attributes::nesterov);
    take(Field::axis, &Attributes::axis);
    take(Field::ranks, &Attributes::ranks);
    take(Field::from, &Attributes::from);
    take(Field::to, &Attributes::to);
    take(Field::extent, &Attributes::extent);
    take(Field::name, &Attributes::name);
    graph.operations.push_back(std::move(operation));
  }
  return graph;
}

}  // namespace athanor
