#include "athanor/compile/lower_sharded.h"

namespace athanor {

namespace {

const std::string& name_of(ShardedGraph& sharded, ValueId local) {
  return sharded.graph().value(local).name;
}

// The values as the next rank of the ring has them after one shift.
std::vector<ValueId> shifted(ShardedGraph& sharded, Axis axis, const std::vector<ValueId>& values,
                             const std::vector<Role>& roles, Part part) {
  Attributes attributes;
  attributes.axis = axis;
  attributes.ranks = sharded.mesh().size(axis);
  std::vector<ValueId> inputs, outputs, result;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == no_value) {
      result.push_back(no_value);
      continue;
    }
    const std::string name = name_of(sharded, values[i]);
    const std::string stem = name.substr(0, name.find(".shifted"));
    inputs.push_back(values[i]);
    outputs.push_back(sharded.make_like(values[i], stem + ".shifted", roles[i]));
    result.push_back(outputs.back());
  }
  sharded.append(OperationKind::shift, std::move(inputs), std::move(outputs), attributes, part);
  return result;
}

Attributes part_attributes(const ShardedGraph& sharded, Axis axis, const Attributes& attributes) {
  Attributes result = attributes;
  result.ranks = sharded.mesh().size(axis);
  return result;
}

}  // namespace

void lower_ring_attention(ShardedGraph& sharded, Axis axis, const std::vector<ValueId>& inputs,
                          const std::vector<ValueId>& outputs, const Attributes& attributes, Part part) {
  const ValueId q = inputs[0], indices = inputs[5], sample_ids = inputs[6];
  const int32_t ranks = sharded.mesh().size(axis);
  // Keys, values, positions, documents, indices: what travels.
  std::vector<ValueId> keys(inputs.begin() + 1, inputs.begin() + 6);
  const std::vector<Role> roles{Role::activation, Role::activation, Role::batch, Role::batch, Role::batch};
  ValueId out = no_value, logsumexp = no_value;
  for (int32_t step = 0; step < ranks; ++step) {
    const bool last = step + 1 == ranks;
    const std::vector<ValueId> here = keys;
    // On its way while this part is computed.
    if (!last) keys = shifted(sharded, axis, here, roles, part);
    // Sums of parts are wide, like statistics.
    const std::string name = name_of(sharded, outputs[0]);
    const ValueId next_out =
        last ? outputs[0] : sharded.make_like(outputs[0], name + ".so_far", Role::statistic);
    const ValueId next_logsumexp =
        last ? outputs[1]
             : sharded.make_like(outputs[1], std::string(name_of(sharded, outputs[1])) + ".so_far",
                                 Role::statistic);
    sharded.append(OperationKind::attention_part,
                   {q, here[0], here[1], inputs[3], inputs[4], here[2], here[3], out, logsumexp, indices,
                    indices == no_value ? no_value : here[4], sample_ids},
                   {next_out, next_logsumexp}, part_attributes(sharded, axis, attributes), part);
    out = next_out;
    logsumexp = next_logsumexp;
  }
}

void lower_ring_attention_gradient(ShardedGraph& sharded, Axis axis, const std::vector<ValueId>& inputs,
                                   const std::vector<ValueId>& outputs, const Attributes& attributes,
                                   Part part) {
  const ValueId dout = inputs[0], q = inputs[1], out = inputs[4], logsumexp = inputs[5];
  const ValueId positions = inputs[6], documents = inputs[7], indices = inputs[8], sample_ids = inputs[9];
  const int32_t ranks = sharded.mesh().size(axis);
  std::vector<ValueId> keys{inputs[2], inputs[3], positions, documents, indices};
  const std::vector<Role> roles{Role::activation, Role::activation, Role::batch, Role::batch, Role::batch};
  ValueId dq = no_value;
  std::vector<ValueId> dkv{no_value, no_value};
  for (int32_t step = 0; step < ranks; ++step) {
    const bool last = step + 1 == ranks;
    const std::vector<ValueId> here = keys;
    if (!last) keys = shifted(sharded, axis, here, roles, part);
    const auto sum = [&](size_t output) {
      const std::string name = name_of(sharded, outputs[output]);
      return sharded.make_like(outputs[output], name + ".so_far",
                               last ? sharded.graph().value(outputs[output]).role : Role::statistic);
    };
    const ValueId next_dq = last ? outputs[0] : sum(0);
    const std::vector<ValueId> sums{sum(1), sum(2)};
    sharded.append(OperationKind::attention_part_gradient,
                   {dout, q, here[0], here[1], out, logsumexp, positions, documents, here[2], here[3], dq,
                    dkv[0], dkv[1], indices, indices == no_value ? no_value : here[4], sample_ids},
                   {next_dq, sums[0], sums[1]}, part_attributes(sharded, axis, attributes), part);
    dq = next_dq;
    // Gradients go along with their keys; after the last step one more shift brings them home.
    if (!last) {
      dkv = shifted(sharded, axis, sums, {Role::statistic, Role::statistic}, part);
    } else {
      Attributes home;
      home.axis = axis;
      home.ranks = ranks;
      sharded.append(OperationKind::shift, sums, {outputs[1], outputs[2]}, home, part);
    }
  }
}

void lower_vocabulary_loss(ShardedGraph& sharded, Axis axis, int64_t vocabulary,
                           const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs,
                           const Attributes& attributes, Part part) {
  const ValueId logits = inputs[0], labels = inputs[1], valid_tokens = inputs[2];
  Attributes phase = attributes;
  phase.extent = vocabulary;
  Attributes capped;
  capped.soft_cap = attributes.soft_cap;
  capped.extent = vocabulary;
  // A statistic of each token: this rank's, then that of all ranks.
  const auto reduced = [&](const std::string& name, int64_t width, Reduction reduction,
                           const std::vector<ValueId>& operands, OperationKind kind) {
    Attributes collective;
    collective.axis = axis;
    collective.ranks = sharded.mesh().size(axis);
    collective.from = {.kind = PlacementKind::partial, .reduction = reduction};
    const ValueId whole = sharded.make_like(outputs[0], name, Role::statistic);
    if (width > 0) sharded.graph().value(whole).shape.append(width);
    const ValueId mine = sharded.make_like(whole, name + ".part", Role::statistic);
    sharded.graph().value(mine).placements[static_cast<size_t>(axis)] = collective.from;
    sharded.append(kind, operands, {mine}, capped, part);
    sharded.append(OperationKind::all_reduce, {mine}, {whole}, collective, part);
    return whole;
  };
  const ValueId row_max = reduced("row_max", 0, Reduction::max, {logits}, OperationKind::vocabulary_max);
  const ValueId sums =
      reduced("row_sums", 3, Reduction::sum, {logits, labels, row_max}, OperationKind::vocabulary_sums);
  sharded.append(OperationKind::vocabulary_loss, {logits, labels, row_max, sums, valid_tokens}, outputs,
                 phase, part);
}

}  // namespace athanor
