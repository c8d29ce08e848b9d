// Programs of many ranks: every layout compiles to one that is in order, collectives stand where they can run
// beside computation, and the verifier sees what would go wrong.

#include <gtest/gtest.h>

#include <algorithm>

#include "athanor/base/error.h"
#include "athanor/compile/compile.h"
#include "athanor/model/test_models.h"
#include "athanor/program/collective_report.h"

namespace athanor {
namespace {

ModelConfig tiny(const std::string& family) {
  return odd_model(family, 5, 48);
}

Backend any_backend() {
  return {
      "any", [](OperationKind, DType) { return true; },
      [](const Operation& operation, std::span<const OperandType>, std::span<const OperandType>) -> int64_t {
        return row_of(operation.kind).is_collective ? 640 : 0;
      }};
}

CompileOptions spread(int32_t replica, int32_t shard, int32_t context, int32_t tensor, int32_t zero) {
  CompileOptions options;
  options.layout.mesh.sizes[static_cast<size_t>(Axis::replica)] = replica;
  options.layout.mesh.sizes[static_cast<size_t>(Axis::shard)] = shard;
  options.layout.mesh.sizes[static_cast<size_t>(Axis::context)] = context;
  options.layout.mesh.sizes[static_cast<size_t>(Axis::tensor)] = tensor;
  options.zero_stage = zero;
  return options;
}

ProgramSet train_program(const CompileOptions& options, int32_t micro_batches = 2) {
  const ProgramRequest request{ProgramKind::train, micro_batches, 1, 24};
  return compile(tiny("gpt2"), {&request, 1}, options, any_backend());
}

const Template& block_of(const StepProgram& program, size_t call) {
  return program.templates[static_cast<size_t>(program.calls[call].template_id)];
}

std::vector<size_t> calls_of(const StepProgram& program, const std::string& name) {
  std::vector<size_t> found;
  for (size_t c = 0; c < program.calls.size(); ++c) {
    if (block_of(program, c).name == name) found.push_back(c);
  }
  return found;
}

std::string fault_of(const StepProgram& program) {
  try {
    verify(program);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(DistributedProgram, CompilesInEveryLayout) {
  int count = 0;
  for (const int32_t replica : {1, 2})
    for (const int32_t shard : {1, 3})
      for (const int32_t context : {1, 2})
        for (const int32_t tensor : {1, 3})
          for (const int32_t zero : {0, 1, 2, 3}) {
            if (shard == 1 && zero > 0) continue;
            CompileOptions options = spread(replica, shard, context, tensor, zero);
            options.precision = count % 2 == 0 ? Precision::bf16 : Precision::fp32;
            options.recompute = static_cast<Recompute>(count % 3);
            options.layout.sequence_parallel = count % 5 < 2;
            options.layout.context_form = count % 2 == 0 ? ContextForm::ring : ContextForm::all_to_all;
            options.optimizer.kind = static_cast<OptimizerKind>((count / 5) % 3);
            options.optimizer.average_decay = count % 7 < 3 ? 0.9 : 0;
            options.gather_window = 1 + count % 3;
            const std::vector<ProgramRequest> requests = {{ProgramKind::train, 1 + count % 3, 2, 24},
                                                          {ProgramKind::validate, 1, 2, 24}};
            ProgramSet set;
            ASSERT_NO_THROW(
                set = compile(tiny(count % 2 == 0 ? "gpt2" : "llama"), requests, options, any_backend()))
                << replica << " " << shard << " " << context << " " << tensor << " zero " << zero;
            for (const StepProgram& program : set.programs) {
              for (const Template& block : program.templates)
                ASSERT_EQ(parse_graph(to_text(block.graph)), block.graph) << to_text(block);
              ASSERT_FALSE(calls_text(program).empty());
              ASSERT_FALSE(memory_text(program, set.persistent_bytes).empty());
            }
            ++count;
          }
}

// An optimizer that could run before the ranks' gradients are summed is no program.
TEST(DistributedProgram, RefusesASum_P21_ThatIsMissing) {
  for (const auto& [axis, options] :
       std::vector<std::pair<std::string, CompileOptions>>{{"replica", spread(2, 1, 1, 1, 0)},
                                                           {"context", spread(1, 1, 2, 1, 0)},
                                                           {"shard", spread(1, 2, 1, 1, 0)}}) {
    StepProgram program = train_program(options).programs[0];
    ASSERT_EQ(fault_of(program), "");
    for (Template& block : program.templates) {
      if (block.name != "sum.block.{layer}") continue;
      block.graph.operations.clear();
      block.instructions.clear();
    }
    for (const size_t call : calls_of(program, "sum.block.{layer}")) program.calls[call].accumulate.clear();
    EXPECT_NE(fault_of(program).find("is used before its sums over axis " + axis), std::string::npos)
        << fault_of(program);
  }
}

TEST(DistributedProgram, RefusesAWaitThatIsMissing) {
  // Weights are gathered on one stream and used on another.
  StepProgram program = train_program(spread(1, 2, 1, 1, 3)).programs[0];
  const size_t user = calls_of(program, "block.forward").at(3);
  ASSERT_FALSE(program.calls[user].waits.empty());
  program.calls[user].waits.clear();
  EXPECT_NE(fault_of(program).find("without waiting for it"), std::string::npos) << fault_of(program);
  // Gradients must be complete before they are sent.
  program = train_program(spread(1, 2, 1, 1, 1)).programs[0];
  program.calls[calls_of(program, "scatter.block.{layer}").at(0)].waits.clear();
  EXPECT_NE(fault_of(program).find("without waiting for it"), std::string::npos) << fault_of(program);
  // Within a template.
  program = train_program(spread(1, 1, 1, 2, 0)).programs[0];
  for (Template& block : program.templates)
    for (Instruction& instruction : block.instructions) instruction.joins = false;
  EXPECT_NE(fault_of(program).find("on different streams use the same bytes"), std::string::npos)
      << fault_of(program);
}

// What a collective between calls uses may not be given away while it can be running.
TEST(DistributedProgram, P42_RefusesMemoryGivenAwayTooSoon) {
  StepProgram program = train_program(spread(1, 2, 1, 1, 2)).programs[0];
  const auto sent = std::ranges::find_if(
      program.buffers, [](const Buffer& buffer) { return buffer.name == "gradients.0.block.3"; });
  ASSERT_NE(sent, program.buffers.end());
  // Another buffer, live as soon as the reduction has been issued, in the same place.
  const auto later = std::ranges::find_if(program.buffers, [&](const Buffer& buffer) {
    return buffer.buffer_class == BufferClass::scratch && buffer.first_call > sent->first_call + 1 &&
           buffer.first_call <= sent->last_call;
  });
  ASSERT_NE(later, program.buffers.end());
  sent->last_call = later->first_call - 1;
  later->offset = sent->offset;
  EXPECT_NE(fault_of(program), "");
}

// A rank may be lost while others update: what they have of the update must not depend on when.
TEST(DistributedProgram, RefusesAnUpdateThatMayBeHalfMade) {
  StepProgram program = train_program(spread(1, 2, 1, 1, 1)).programs[0];
  const size_t gathered = calls_of(program, "gather.block.{layer}").at(0);
  Call& later = program.calls[calls_of(program, "optimizer.block").at(1)];
  ASSERT_EQ(fault_of(program), "");
  later.waits.push_back(static_cast<int32_t>(gathered));
  EXPECT_NE(fault_of(program).find("collectives behind the begin of the update"), std::string::npos)
      << fault_of(program);

  // A gather for later use that is still running when the update begins.
  program = train_program(spread(1, 2, 1, 1, 3)).programs[0];
  const auto begin = static_cast<int32_t>(update_begin(program));
  Call gather = program.calls[calls_of(program, "gather.block.{layer}").at(0)];
  gather.waits.clear();
  const auto shift = [&](int32_t& call) { call += call >= begin ? 1 : 0; };
  for (Call& call : program.calls) std::ranges::for_each(call.waits, shift);
  for (Buffer& buffer : program.buffers) {
    shift(buffer.first_call);
    shift(buffer.last_call);
  }
  for (BufferId& buffer : gather.buffers) {
    Buffer own = program.buffers[static_cast<size_t>(buffer)];
    if (is_persistent(own.buffer_class)) continue;
    own.first_call = own.last_call = begin;
    own.offset = program.transient_bytes;
    program.transient_bytes += aligned(own.bytes);
    buffer = static_cast<BufferId>(program.buffers.size());
    program.buffers.push_back(own);
  }
  program.calls.insert(program.calls.begin() + begin, gather);
  EXPECT_NE(fault_of(program).find("weights are changed before the collectives of call"), std::string::npos)
      << fault_of(program);
}

// Gathers run ahead of their users, reductions lag behind, and neither holds up the compute stream.
TEST(DistributedProgram, CollectivesRunBesideComputation) {
  CompileOptions options = spread(1, 2, 1, 1, 3);
  options.gather_window = 2;
  const StepProgram program = train_program(options, 1).programs[0];
  for (const size_t gather : calls_of(program, "gather.block.{layer}")) {
    const auto user = std::ranges::find_if(program.calls, [&](const Call& call) {
      return std::ranges::count(call.waits, static_cast<int32_t>(gather)) > 0;
    });
    ASSERT_NE(user, program.calls.end());
    int64_t between = 0;
    for (size_t c = gather + 1; c < static_cast<size_t>(user - program.calls.begin()); ++c)
      between += block_of(program, c).instructions.front().stream == StreamKind::compute ? 1 : 0;
    EXPECT_EQ(between, 2) << gather;
  }
  const std::vector<size_t> backward = calls_of(program, "block.backward"),
                            scatter = calls_of(program, "scatter.block.{layer}");
  ASSERT_EQ(backward.size(), scatter.size());
  for (size_t i = 0; i < backward.size(); ++i) {
    EXPECT_EQ(program.calls[scatter[i]].layer, program.calls[backward[i]].layer);
    EXPECT_GT(scatter[i], backward[i]);
    if (i + 1 == backward.size()) continue;
    EXPECT_LT(scatter[i], backward[i + 1]);
    EXPECT_EQ(std::ranges::count(program.calls[backward[i + 1]].waits, static_cast<int32_t>(scatter[i])), 0);
  }
  // No more whole buckets at once than the window asks for: the one in use, and those of the window.
  int64_t live = 0, most = 0;
  for (size_t c = 0; c < program.calls.size(); ++c) {
    live = 0;
    for (const Buffer& buffer : program.buffers) {
      const bool block = buffer.name.find(".block.") != std::string::npos;
      if (block && buffer.buffer_class == BufferClass::gathered_weights &&
          buffer.first_call <= static_cast<int32_t>(c) && static_cast<int32_t>(c) <= buffer.last_call)
        ++live;
    }
    most = std::max(most, live);
  }
  EXPECT_GE(most, 2);
  EXPECT_LE(most, 4);
}

// A ring is written out step by step: as many operations for each further rank, and what a rank holds depends
// on its own tokens alone.
TEST(DistributedProgram, ALongRingCostsInstructionsAndNoMemory) {
  const auto program_of = [](int32_t ranks) {
    const ProgramRequest request{ProgramKind::train, 2, 1, 16 * ranks};
    ModelConfig config = tiny("llama");
    config.maximum_positions = 16 * 128;
    return compile(config, {&request, 1}, spread(1, 1, ranks, 1, 0), any_backend()).programs[0];
  };
  const auto operations = [](const StepProgram& program) {
    int64_t count = 0;
    for (const Template& block : program.templates) {
      if (block.name.starts_with("block.")) count += std::ssize(block.graph.operations);
    }
    return count;
  };
  const StepProgram some = program_of(4), more = program_of(8), many = program_of(128);
  const int64_t each = (operations(more) - operations(some)) / 4;
  EXPECT_LE(each, 6);  // a part and its shift, forward, and backward with a shift more
  EXPECT_EQ(operations(many) - operations(more), 120 * each);
  EXPECT_EQ(many.transient_bytes, more.transient_bytes);
}

// Of gradients, not of weights, activations and scalars.
TEST(DistributedProgram, ANarrowWireHalvesWhatGradientsSend) {
  CompileOptions options = spread(2, 3, 1, 2, 2);
  const ProgramSet wide = train_program(options);
  options.gradient_wire = DType::bf16;
  const ProgramSet narrow = train_program(options);
  const auto before = collectives_of(wide.programs[0], wide.gradient_wire),
             after = collectives_of(narrow.programs[0], narrow.gradient_wire);
  ASSERT_EQ(before.size(), after.size());
  int gradients = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const bool is_gradient = before[i].operation == OperationKind::reduce_members ||
                             before[i].operation == OperationKind::reduce_scatter_bucket;
    const int part = is_gradient ? 2 : 1;
    gradients += is_gradient ? 1 : 0;
    EXPECT_EQ(after[i].operation, before[i].operation);
    EXPECT_EQ(after[i].dtype, is_gradient ? DType::bf16 : before[i].dtype);
    EXPECT_EQ(after[i].count, before[i].count);
    EXPECT_EQ(after[i].bytes * part, before[i].bytes) << name_of(before[i].operation);
    EXPECT_EQ(after[i].sent * part, before[i].sent) << name_of(before[i].operation);
    EXPECT_EQ(after[i].largest_bytes * part, before[i].largest_bytes) << name_of(before[i].operation);
  }
  EXPECT_GE(gradients, 2);
}

// With a wide residual stream and narrow products: gradients of it are gathered for products alone.
TEST(DistributedProgram, WhatProductsReadTravelsAsTheyReadIt) {
  CompileOptions options = spread(1, 1, 1, 2, 0);
  options.precision = Precision::bf16;
  options.layout.sequence_parallel = true;
  const ProgramSet set = train_program(options);
  int gathers = 0;
  for (const Template& each : set.programs[0].templates) {
    if (each.name.find("block") == std::string::npos) continue;
    for (const Operation& operation : each.graph.operations) {
      if (operation.kind != OperationKind::all_gather) continue;
      ++gathers;
      EXPECT_EQ(each.graph.value(operation.outputs[0]).dtype, DType::bf16)
          << each.name << " " << each.graph.value(operation.outputs[0]).name;
    }
  }
  EXPECT_GE(gathers, 4);  // two of activations forward and again backward, two of gradients
}

// The stages keep what they say: of a model of which a rank of one would keep everything.
TEST(DistributedProgram, StagesKeepPartsOfMore) {
  const auto bytes = [](int32_t ranks, int32_t zero) {
    CompileOptions options = spread(1, ranks, 1, 1, zero);
    options.precision = Precision::bf16;
    const ProgramSet set = train_program(options);
    return memory_report(set.programs[0], set.persistent_bytes).peak_bytes;
  };
  const auto whole = bytes(1, 0), one = bytes(4, 1), two = bytes(4, 2), three = bytes(4, 3);
  const auto of = [](const auto& report, BufferClass kind) {
    return static_cast<double>(report[static_cast<size_t>(kind)]);
  };
  for (const auto& report : {one, two, three}) {
    EXPECT_NEAR(of(report, BufferClass::master_weights) / of(whole, BufferClass::master_weights), 0.25, 0.01);
    EXPECT_NEAR(of(report, BufferClass::optimizer_state) / of(whole, BufferClass::optimizer_state), 0.25,
                0.01);
  }
  EXPECT_NEAR(of(one, BufferClass::gradients) / of(whole, BufferClass::gradients), 1.25, 0.01);
  EXPECT_NEAR(of(two, BufferClass::gradients) / of(whole, BufferClass::gradients), 0.25, 0.01);
  EXPECT_NEAR(of(two, BufferClass::working_weights) / of(whole, BufferClass::working_weights), 1.25, 0.01);
  EXPECT_NEAR(of(three, BufferClass::working_weights) / of(whole, BufferClass::working_weights), 0.25, 0.01);
}

}  // namespace
}  // namespace athanor
