#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "athanor/base/error.h"
#include "athanor/program/test_programs.h"

namespace athanor {
namespace {

// What `verify` says of a program; empty when it is in order.
std::string fault_of(const StepProgram& program) {
  try {
    verify(program);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::stop_job ? error.message() : "another kind of error";
  }
  return "";
}

Buffer& buffer(StepProgram& program, const std::string& name) {
  for (Buffer& b : program.buffers) {
    if (b.name == name) return b;
  }
  ADD_FAILURE() << "no buffer " << name;
  return program.buffers.front();
}

Template& block(StepProgram& program, const std::string& name) {
  for (Template& t : program.templates) {
    if (t.name == name) return t;
  }
  ADD_FAILURE() << "no template " << name;
  return program.templates.front();
}

Slot& slot(StepProgram& program, const std::string& name, const std::string& value) {
  Template& t = block(program, name);
  return t.slots.at(static_cast<size_t>(t.graph.find(value)));
}

// Buffers do not share bytes in the example, so all may live from the first call to the last.
void let_all_live(StepProgram& program) {
  for (Buffer& b : program.buffers) {
    if (is_persistent(b.buffer_class)) continue;
    b.first_call = 0;
    b.last_call = static_cast<int32_t>(program.calls.size()) - 1;
  }
}

// Calls: load 0 1, count 2 3, forward head backward 4 5 6 and 7 8 9, norms 10, clip 11, optimizer 12.
TEST(ProgramVerifier, AcceptsTheExample) {
  EXPECT_EQ(fault_of(TestProgram::make()), "");
}

TEST(ProgramVerifier, RefusesEachKindOfFault) {
  struct Case {
    std::string fault;
    std::function<void(StepProgram&)> break_it;
  };
  const std::vector<Case> cases = {
      // binding
      {"call 4: there is no template 99", [](StepProgram& p) { p.calls[4].template_id = 99; }},
      {"call 4 (forward, micro-batch 0): base batch.token_ids is bound to buffer 999 of",
       [](StepProgram& p) { p.calls[4].buffers[1] = 999; }},
      {"call 4 (forward, micro-batch 0): 2 buffers and 3 offsets for 3 bases",
       [](StepProgram& p) { p.calls[4].buffers.pop_back(); }},
      {"base working has bytes [64, 256) of buffer master, which has 192",
       [](StepProgram& p) { p.calls[4].base_offsets[0] = 64; }},
      {"base working has bytes [-64, 128) of buffer master",
       [](StepProgram& p) { p.calls[4].base_offsets[0] = -64; }},
      {"base working (working weights) is bound to buffer batch.positions.0 (batch)",
       [](StepProgram& p) {
         p.calls[4].buffers[0] = p.calls[0].buffers[2];
         buffer(p, "batch.positions.0").bytes = 192;
         buffer(p, "batch.positions.0").offset = p.transient_bytes;
         p.transient_bytes += 192;
       }},
      {"1 accumulate flags for 8 operations", [](StepProgram& p) { p.calls[5].accumulate.resize(1); }},
      {"operation 2 (matmul): it cannot accumulate", [](StepProgram& p) { p.calls[5].accumulate[2] = true; }},
      // the memory plan
      {"buffer master has 192 bytes at 8", [](StepProgram& p) { buffer(p, "master").offset = 8; }},
      {"buffers gradients and first_moment share bytes",
       [](StepProgram& p) { buffer(p, "first_moment").offset = buffer(p, "gradients").offset + 128; }},
      {"buffer d.residual.1 ends at 2816 in an arena of 2752",
       [](StepProgram& p) { p.transient_bytes -= 64; }},
      {"buffers residual.0 and d.residual.0 share bytes while both are live",
       [](StepProgram& p) { buffer(p, "d.residual.0").offset = buffer(p, "residual.0").offset + 64; }},
      {"buffers batch.labels.0 and batch.labels.1 share bytes while both are live",
       [](StepProgram& p) { buffer(p, "batch.labels.1").offset = buffer(p, "batch.labels.0").offset; }},
      {"call 8 (head, micro-batch 1): buffer residual.1 lives in calls 7 to 7 only",
       [](StepProgram& p) { buffer(p, "residual.1").last_call = 7; }},
      {"buffer residual.1 lives in calls 8 to 7 of 13",
       [](StepProgram& p) {
         buffer(p, "residual.1").first_call = 8;
         buffer(p, "residual.1").last_call = 7;
       }},
      {"persistent buffer master stands behind a transient one",
       [](StepProgram& p) {
         p.buffers.insert(p.buffers.begin(),
                          {.name = "early", .buffer_class = BufferClass::saved, .offset = 0});
       }},
      // written before read
      {"call 4 (head, micro-batch 0), operation 2 (matmul): value %4 (rows) reads bytes [0, 128) of buffer "
       "residual.0, "
       "which nothing has written in this step",
       [](StepProgram& p) {
         p.calls.erase(p.calls.begin() + 4);
         let_all_live(p);
       }},
      {"reads bytes [0, 8) of buffer valid_tokens",
       [](StepProgram& p) {
         p.calls[2] = p.calls[0];
         p.calls[3] = p.calls[1];
         p.calls[4].waits = {2, 3};
         let_all_live(p);
       }},
      {"reads bytes [0, 8) of buffer clip_factor",
       [](StepProgram& p) { std::swap(p.calls[11], p.calls[12]); }},
      // gradients
      {"call 8 (head, micro-batch 1), operation 6 (matmul_weight_gradient): value %11 (dw) overwrites bytes "
       "[0, 192) of "
       "buffer gradients, which hold another contribution",
       [](StepProgram& p) { p.calls[8].accumulate[6] = false; }},
      {"adds to bytes [0, 192) of buffer gradients, which nothing has written in this step",
       [](StepProgram& p) { p.calls[5].accumulate[6] = true; }},
      {"bytes [0, 192) of buffer gradients get 2 contributions from micro-batch 0 and 3 from 1",
       [](StepProgram& p) {
         p.calls.insert(p.calls.begin() + 10, p.calls[9]);
         let_all_live(p);
       }},
      {"call 10 (norms), operation 0 (squared_norms): the gradient of forgotten.weight is never written",
       [](StepProgram& p) {
         for (const char* name : {"norms", "optimizer"}) {
           Template& t = block(p, name);
           t.graph.tables[0].members.push_back({.name = "forgotten.weight", .shape = {16}, .offset = 48});
           for (Value& value : t.graph.values) {
             if (value.shape == Shape({48})) value.shape = {64};
             if (value.name == "norms") value.shape = {2};
           }
           for (Base& base : t.bases) {
             if (base.bytes == 192) base.bytes = 256;
             if (base.name == "norms") base.bytes = 16;
           }
         }
         buffer(p, "norms").bytes = 16;
         for (const char* name : {"master", "gradients", "first_moment", "second_moment"})
           buffer(p, name).bytes = 256;
         int64_t offset = 0;
         for (Buffer& b : p.buffers) {
           if (!is_persistent(b.buffer_class)) break;
           b.offset = offset;
           offset += 256;
         }
       }},
      // streams
      {"call 2 (count, micro-batch 0), operation 0 (count_valid): value %0 (labels) on stream compute uses "
       "bytes of buffer "
       "batch.labels.0 that call 0 uses on stream copy, without waiting for it",
       [](StepProgram& p) { p.calls[2].waits.clear(); }},
      {"call 2 (count, micro-batch 0): it waits for call 2", [](StepProgram& p) { p.calls[2].waits = {2}; }},
      {"call 2 (count, micro-batch 0): it waits for call -1",
       [](StepProgram& p) { p.calls[2].waits = {-1}; }},
      // A second load into bytes that the compute stream may still be reading.
      {"value %0 (token_ids) on stream copy uses bytes of buffer batch.token_ids.0 that call 4 uses on "
       "stream compute",
       [](StepProgram& p) {
         Call late = p.calls[0];
         p.calls.insert(p.calls.begin() + 6, late);
         let_all_live(p);
       }},
      // templates
      {"template head, operation 2 (matmul): it has no instruction in its place",
       [](StepProgram& p) { std::swap(block(p, "head").instructions[0], block(p, "head").instructions[1]); }},
      {"template head: 6 instructions for 5 operations",
       [](StepProgram& p) {
         auto& instructions = block(p, "head").instructions;
         instructions.push_back(instructions.back());
       }},
      {"value %6 (logits) has bytes [704, 776) of base scratch, which has 740",
       [](StepProgram& p) { slot(p, "head", "logits").offset = slot(p, "head", "dlogits").offset = 704; }},
      {"has base 99 of", [](StepProgram& p) { slot(p, "head", "logits").base = 99; }},
      {"value %4 (rows) has bytes [160, 192) of base residual, which has 128",
       [](StepProgram& p) { slot(p, "head", "rows").chunk_bytes = 160; }},
      {"the rows of value %6 (logits) lie in one another",
       [](StepProgram& p) {
         slot(p, "head", "logits").token_stride = slot(p, "head", "dlogits").token_stride = 5;
       }},
      {"operation 2 (matmul): its workspace has bytes [",
       [](StepProgram& p) { block(p, "head").instructions[0].workspace_bytes = 5000; }},
      {"operation 2 (matmul): its workspace touches an output",
       [](StepProgram& p) {
         block(p, "head").instructions[0].workspace.offset = slot(p, "head", "logits").offset;
       }},
      {"operation 2 (matmul): its workspace touches value %4 (rows)",
       [](StepProgram& p) { block(p, "head").instructions[0].workspace = slot(p, "head", "rows"); }},
      {"operation 3 (cross_entropy): another output touches value %7 (token_loss)",
       [](StepProgram& p) {
         slot(p, "head", "token_loss") = slot(p, "head", "dlogits");
         slot(p, "head", "token_loss").token_stride = 1;
       }},
      // The loss of a chunk takes the place of the rows, which the weight gradient still reads.
      {"template head, operation 6 (matmul_weight_gradient): value %4 (rows) is read, but bytes [0, 12) of "
       "base residual hold "
       "value %7 (token_loss)",
       [](StepProgram& p) {
         slot(p, "head", "token_loss") = slot(p, "head", "rows");
         slot(p, "head", "token_loss").token_stride = 1;
       }},
      {"operation 2 (matmul): an output touches its input value %4 (rows)",
       [](StepProgram& p) {
         slot(p, "head", "logits") = slot(p, "head", "dlogits") = slot(p, "head", "rows");
         slot(p, "head", "logits").token_stride = slot(p, "head", "dlogits").token_stride = 6;
       }},
      {"operation 4 (sum): value %12 (loss) is added to, but was overwritten",
       [](StepProgram& p) { slot(p, "head", "loss") = slot(p, "head", "dx"); }},
      // Only the last chunk's rows come to lie over it.
      {"template head: value %12 (loss) is an output and is overwritten before the end",
       [](StepProgram& p) {
         slot(p, "head", "loss") = slot(p, "head", "dx");
         slot(p, "head", "loss").offset = 96;
       }},
      {"template forward, operation 0 (embedding): an output touches its input value %0 (w)",
       [](StepProgram& p) {
         Template& t = block(p, "forward");
         t.bases[static_cast<size_t>(slot(p, "forward", "w").base)].buffer_class = BufferClass::residual;
         slot(p, "forward", "x") = slot(p, "forward", "w");
         slot(p, "forward", "x").token_stride = 8;
       }},
      {"value %2 (x) is written among master weights",
       [](StepProgram& p) {
         block(p, "forward").bases[static_cast<size_t>(slot(p, "forward", "x").base)].buffer_class =
             BufferClass::master_weights;
       }},
  };
  for (const Case& c : cases) {
    StepProgram program = TestProgram::make();
    c.break_it(program);
    EXPECT_THAT(fault_of(program), ::testing::HasSubstr(c.fault));
  }
}

// A wait for a wait is enough: order is transitive.
TEST(ProgramVerifier, OrderIsTransitive) {
  StepProgram program = TestProgram::make();
  program.calls[2].waits = {0, 1};
  program.calls[3].waits.clear();  // on the same stream as the one that waited
  EXPECT_EQ(fault_of(program), "");
}

// Bytes of a dead buffer may be used again, by another stream only after a wait.
TEST(ProgramVerifier, ReuseAcrossStreamsNeedsAWait) {
  StepProgram program = TestProgram::make();
  // Load micro-batch 1 just before it is used, into the bytes that micro-batch 0 had.
  Call late = program.calls[1], count = program.calls[3];
  program.calls.erase(program.calls.begin() + 1);  // load 0, count 0, count 1, forward ...
  program.calls.erase(program.calls.begin() + 2);  // load 0, count 0, forward, head, backward, forward ...
  count.waits = {5};
  late.waits = {4};
  program.calls.insert(program.calls.begin() + 5, {late, count});
  for (const char* name : {"token_ids", "labels", "positions", "documents", "indices", "sample_ids"}) {
    Buffer &first = buffer(program, fmt::format("batch.{}.0", name)),
           &second = buffer(program, fmt::format("batch.{}.1", name));
    first.last_call = 4;
    second.first_call = 5;
    second.last_call = 9;
    second.offset = first.offset;
  }
  for (Buffer& b : program.buffers) {  // the others keep their bytes to themselves
    if (b.first_call >= 0 && b.buffer_class != BufferClass::batch) {
      b.first_call = 0;
      b.last_call = 12;
    }
  }
  program.calls[1].waits = {0};
  EXPECT_EQ(fault_of(program), "");
  program.calls[5].waits.clear();
  EXPECT_THAT(fault_of(program),
              ::testing::HasSubstr("on stream copy uses bytes of buffer batch.token_ids.1 that call 4 uses"));
}

TEST(ProgramVerifier, PaddingBetweenMembersNeedNotBeWritten) {
  StepProgram program = TestProgram::make();
  for (const char* name : {"norms", "optimizer"}) {
    Template& t = block(program, name);
    for (Value& value : t.graph.values) {
      if (value.shape == Shape({48})) value.shape = {52};  // four elements of padding at the end
    }
    for (Base& base : t.bases) {
      if (base.bytes == 192) base.bytes = 208;
    }
  }
  int64_t offset = 0;
  for (Buffer& b : program.buffers) {
    if (!is_persistent(b.buffer_class)) break;
    if (b.bytes == 192) b.bytes = 208;
    b.offset = offset;
    offset += 256;
  }
  EXPECT_EQ(fault_of(program), "");
}

TEST(ProgramCost, IsTheSumOverCalls) {
  // The head's product and its two gradients, 4 tokens x 8 x 6, for both micro-batches.
  EXPECT_EQ(cost_of(TestProgram::make()).flops, 2 * 3 * (2 * 4 * 8 * 6));
}

TEST(MemoryReport, TakesTransientBuffersAtTheirPeak) {
  StepProgram program = TestProgram::make();
  const MemoryReport report = memory_report(program, 2048);
  const auto peak = [&](BufferClass c) { return report.peak_bytes[static_cast<size_t>(c)]; };
  EXPECT_EQ(peak(BufferClass::master_weights), 192);
  EXPECT_EQ(peak(BufferClass::optimizer_state), 2 * 192);
  EXPECT_EQ(peak(BufferClass::scalars), 6 * 8);
  EXPECT_EQ(report.peak_call, 5);  // the first head: residual, its gradient and scratch are live
  EXPECT_EQ(peak(BufferClass::residual), 2 * 128);
  EXPECT_EQ(report.total_bytes(), 2048 + program.transient_bytes);
}

}  // namespace
}  // namespace athanor
