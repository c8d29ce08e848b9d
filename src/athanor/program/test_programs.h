// A small training program for the tests of this room. Only tests include it. Thread safety: pure functions.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "athanor/program/program.h"

namespace athanor {

// Where the values of a template lie: by name, a base of its own; all others follow each other in "scratch".
using Places = std::map<std::string, std::pair<std::string, BufferClass>>;

inline int64_t test_aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

inline Template make_template(Graph graph, const Places& places, StreamKind stream = StreamKind::compute) {
  Template block{.name = graph.name, .graph = std::move(graph), .bases = {}, .slots = {}, .instructions = {}};
  const auto base_named = [&](const std::string& name, BufferClass buffer_class) {
    for (size_t i = 0; i < block.bases.size(); ++i) {
      if (block.bases[i].name == name) return i;
    }
    block.bases.push_back({name, buffer_class, 0});
    return block.bases.size() - 1;
  };
  for (const Value& value : block.graph.values) {
    const auto place = places.find(value.name);
    const bool given = place != places.end();
    const size_t index = given ? base_named(place->second.first, place->second.second)
                               : base_named("scratch", BufferClass::scratch);
    Base& base = block.bases[index];
    const int64_t offset = given ? 0 : test_aligned(base.bytes);
    base.bytes =
        std::max(base.bytes, offset + value.shape.elements() * static_cast<int64_t>(size_of(value.dtype)));
    block.slots.push_back({static_cast<int32_t>(index), offset, value.shape.elements_per_token(), 0});
  }
  for (size_t i = 0; i < block.graph.operations.size(); ++i) {
    const OperationKind kind = block.graph.operations[i].kind;
    if (row_of(kind).is_view) continue;
    Instruction instruction{.operation = static_cast<int32_t>(i), .stream = stream, .workspace = {}};
    if (kind == OperationKind::matmul) {
      const size_t scratch = base_named("scratch", BufferClass::scratch);
      instruction.workspace = {static_cast<int32_t>(scratch), test_aligned(block.bases[scratch].bytes), 0, 0};
      instruction.workspace_bytes = 100;
      block.bases[scratch].bytes = instruction.workspace.offset + 100;
    }
    block.instructions.push_back(instruction);
  }
  return block;
}

class TestProgram {
 public:
  // Two micro-batches of one sample of 4 tokens, width 8, vocabulary 6, one tied weight, AdamW.
  static StepProgram make() {
    TestProgram t;
    t.program_.micro_batches = 2;
    t.program_.micro_batch = 1;
    t.program_.sequence_length = 4;
    t.add_persistent();
    t.add_templates();
    for (int32_t m = 0; m < 2; ++m) t.call("load", m);
    for (int32_t m = 0; m < 2; ++m) t.call("count", m).waits = {m};
    for (int32_t m = 0; m < 2; ++m) {
      t.call("forward", m);
      t.call("head", m);
      t.call("backward", m);
    }
    for (const char* name : {"norms", "clip", "optimizer"}) t.call(name, -1);
    t.plan();
    return std::move(t.program_);
  }

 private:
  static Graph named(const char* name) {
    Graph graph;
    graph.name = name;
    return graph;
  }
  static ValueId value(Graph& graph, const std::string& name, Shape shape, Role role,
                       DType dtype = DType::fp32) {
    return graph.add_value({.name = name, .dtype = dtype, .shape = shape, .placements = {}, .role = role});
  }
  static ValueId input(Graph& graph, const std::string& name, Shape shape, Role role,
                       DType dtype = DType::fp32) {
    graph.inputs.push_back(value(graph, name, shape, role, dtype));
    return graph.inputs.back();
  }
  static ValueId output(Graph& graph, const std::string& name, Shape shape, Role role,
                        DType dtype = DType::fp32) {
    graph.outputs.push_back(value(graph, name, shape, role, dtype));
    return graph.outputs.back();
  }

  void add_persistent() {
    int64_t offset = 0;
    const auto add = [&](const std::string& name, BufferClass buffer_class, int64_t bytes) {
      program_.buffers.push_back(
          {.name = name, .buffer_class = buffer_class, .bytes = bytes, .offset = offset});
      offset += test_aligned(bytes);
    };
    add("master", BufferClass::master_weights, 192);
    add("gradients", BufferClass::gradients, 192);
    add("first_moment", BufferClass::optimizer_state, 192);
    add("second_moment", BufferClass::optimizer_state, 192);
    for (const char* name : {"valid_tokens", "loss", "gradient_norm", "clip_factor", "skip", "norms"}) {
      add(name, BufferClass::scalars, 8);
    }
  }

  void add_templates() {
    using enum OperationKind;
    using enum BufferClass;
    const Shape tokens{1, 4}, stream{1, 4, 8}, weight{6, 8}, one{1}, bucket{48};
    Places places;
    for (const char* name : {"token_ids", "labels", "positions", "documents", "indices", "sample_ids"}) {
      places[name] = {std::string("batch.") + name, batch};
    }
    for (const char* name : {"valid_tokens", "loss", "gradient_norm", "clip_factor", "skip", "norms"}) {
      places[name] = {name, scalars};
    }
    places["w"] = {"working", working_weights};
    places["dw"] = places["gradients"] = {"gradients", gradients};
    places["x"] = {"residual", residual};
    places["dx"] = {"d.residual", residual};
    places["master"] = {"master", master_weights};
    places["first_moment"] = {"first_moment", optimizer_state};
    places["second_moment"] = {"second_moment", optimizer_state};
    const BucketTable table{
        "all", {{.name = "embedding.weight", .shape = {6, 8}, .role = ParameterRole::embedding}}};

    Graph load = named("load");
    std::vector<ValueId> loaded;
    for (const char* name : {"token_ids", "labels", "positions", "documents", "indices"}) {
      loaded.push_back(output(load, name, tokens, Role::batch, DType::int32));
    }
    loaded.push_back(output(load, "sample_ids", {1}, Role::batch, DType::int64));
    load.add_operation(load_batch, {}, loaded);
    program_.templates.push_back(make_template(std::move(load), places, StreamKind::copy));

    Graph count = named("count");
    const ValueId counted = input(count, "labels", tokens, Role::batch, DType::int32);
    count.add_operation(count_valid, {counted},
                        {output(count, "valid_tokens", one, Role::scalar, DType::fp64)});
    program_.templates.push_back(make_template(std::move(count), places));

    Graph forward = named("forward");
    {
      const ValueId w = input(forward, "w", weight, Role::parameter);
      const ValueId ids = input(forward, "token_ids", tokens, Role::batch, DType::int32);
      forward.add_operation(embedding, {w, ids}, {output(forward, "x", stream, Role::residual)});
    }
    program_.templates.push_back(make_template(std::move(forward), places));

    Graph head = named("head");
    head.regions.push_back({.name = "logits", .rows = 4, .chunk_rows = 3});
    {
      const ValueId x = input(head, "x", stream, Role::residual),
                    w = input(head, "w", weight, Role::parameter);
      const ValueId labels = input(head, "labels", tokens, Role::batch, DType::int32);
      const ValueId valid = input(head, "valid_tokens", one, Role::scalar, DType::fp64);
      const ValueId rows = value(head, "rows", {1, 3, 8}, Role::activation);
      const ValueId row_labels = value(head, "row_labels", {1, 3}, Role::batch, DType::int32);
      const ValueId logits = value(head, "logits", {1, 3, 6}, Role::activation);
      const ValueId token_loss = value(head, "token_loss", {1, 3}, Role::statistic);
      const ValueId dlogits = value(head, "dlogits", {1, 3, 6}, Role::activation_gradient);
      const ValueId drows = value(head, "drows", {1, 3, 8}, Role::activation_gradient);
      const ValueId dx = output(head, "dx", stream, Role::residual_gradient);
      const ValueId dw = output(head, "dw", weight, Role::parameter_gradient);
      const ValueId loss = output(head, "loss", one, Role::scalar, DType::fp64);
      const auto in_loop = [&](OperationKind kind, std::vector<ValueId> from, std::vector<ValueId> to) {
        Attributes attributes;
        if (kind == chunk || kind == collect) attributes.region = 0;
        head.add_operation(kind, std::move(from), std::move(to), attributes).region = 0;
      };
      in_loop(chunk, {x}, {rows});
      in_loop(chunk, {labels}, {row_labels});
      in_loop(matmul, {rows, w}, {logits});
      in_loop(cross_entropy, {logits, row_labels, valid}, {token_loss, dlogits});
      in_loop(OperationKind::sum, {token_loss}, {loss});
      in_loop(matmul_input_gradient, {dlogits, w}, {drows});
      in_loop(matmul_weight_gradient, {dlogits, rows}, {dw});
      in_loop(collect, {drows}, {dx});
      Template block = make_template(std::move(head), places);
      const auto view = [&](ValueId part, ValueId whole, int64_t row_bytes) {
        block.slots[static_cast<size_t>(part)] = block.slots[static_cast<size_t>(whole)];
        block.slots[static_cast<size_t>(part)].chunk_bytes = 3 * row_bytes;
      };
      view(rows, x, 32);
      view(row_labels, labels, 4);
      view(drows, dx, 32);
      block.slots[static_cast<size_t>(dlogits)] = block.slots[static_cast<size_t>(logits)];  // in place
      program_.templates.push_back(std::move(block));
    }

    Graph backward = named("backward");
    {
      const ValueId dx = input(backward, "dx", stream, Role::residual_gradient);
      const ValueId ids = input(backward, "token_ids", tokens, Role::batch, DType::int32);
      backward.add_operation(embedding_gradient, {dx, ids},
                             {output(backward, "dw", weight, Role::parameter_gradient)}, {},
                             Part::weight_gradient);
    }
    program_.templates.push_back(make_template(std::move(backward), places));

    Graph norms = named("norms");
    norms.tables.push_back(table);
    {
      const ValueId gradient = input(norms, "gradients", bucket, Role::bucket_gradient);
      Attributes attributes;
      attributes.table = 0;
      norms.add_operation(squared_norms, {gradient}, {output(norms, "norms", one, Role::scalar, DType::fp64)},
                          attributes, Part::update);
    }
    program_.templates.push_back(make_template(std::move(norms), places));

    Graph clipping = named("clip");
    {
      std::vector<ValueId> from, to;
      for (const char* name : {"norms", "valid_tokens", "loss"}) {
        from.push_back(input(clipping, name, one, Role::scalar, DType::fp64));
      }
      for (const char* name : {"gradient_norm", "clip_factor", "skip"}) {
        to.push_back(output(clipping, name, one, Role::scalar, DType::fp64));
      }
      clipping.add_operation(clip, from, to, {}, Part::update);
    }
    program_.templates.push_back(make_template(std::move(clipping), places));

    Graph optimizer = named("optimizer");
    optimizer.tables.push_back(table);
    {
      const ValueId gradient = input(optimizer, "gradients", bucket, Role::bucket_gradient);
      const ValueId factor = input(optimizer, "clip_factor", one, Role::scalar, DType::fp64);
      const ValueId skip = input(optimizer, "skip", one, Role::scalar, DType::fp64);
      Attributes attributes;
      attributes.table = 0;
      optimizer.add_operation(adamw, {gradient, factor, skip},
                              {output(optimizer, "master", bucket, Role::master),
                               output(optimizer, "first_moment", bucket, Role::optimizer_state),
                               output(optimizer, "second_moment", bucket, Role::optimizer_state)},
                              attributes, Part::update);
    }
    program_.templates.push_back(make_template(std::move(optimizer), places));
  }

  Call& call(const std::string& name, int32_t micro_batch) {
    const auto index = static_cast<int32_t>(program_.calls.size());
    Call call;
    call.micro_batch = micro_batch;
    for (size_t i = 0; i < program_.templates.size(); ++i) {
      if (program_.templates[i].name == name) call.template_id = static_cast<TemplateId>(i);
    }
    const Template& block = program_.templates[static_cast<size_t>(call.template_id)];
    for (const Base& base : block.bases) {
      std::string buffer = base.name == "working" ? "master" : base.name;
      if (base.buffer_class == BufferClass::scratch) buffer += "." + std::to_string(index);
      if (base.buffer_class == BufferClass::batch || base.buffer_class == BufferClass::residual) {
        buffer += "." + std::to_string(micro_batch);
      }
      const BufferId id = buffer_named(buffer, base.buffer_class);
      Buffer& bound = program_.buffers[static_cast<size_t>(id)];
      if (!is_persistent(bound.buffer_class)) {
        bound.bytes = std::max(bound.bytes, base.bytes);
        if (bound.first_call < 0) bound.first_call = index;
        bound.last_call = index;
      }
      call.buffers.push_back(id);
      call.base_offsets.push_back(0);
    }
    for (const Operation& operation : block.graph.operations) {
      const bool accumulates = row_of(operation.kind).accumulates;
      call.accumulate.push_back(accumulates && (micro_batch > 0 || name == "backward"));
    }
    program_.calls.push_back(std::move(call));
    return program_.calls.back();
  }

  BufferId buffer_named(const std::string& name, BufferClass buffer_class) {
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      if (program_.buffers[i].name == name) return static_cast<BufferId>(i);
    }
    program_.buffers.push_back({.name = name, .buffer_class = buffer_class});
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }

  void plan() {
    int64_t offset = 0;
    for (Buffer& buffer : program_.buffers) {
      if (is_persistent(buffer.buffer_class)) continue;
      buffer.offset = offset;
      offset += test_aligned(buffer.bytes);
    }
    program_.transient_bytes = offset;
  }

  StepProgram program_;
};

}  // namespace athanor
