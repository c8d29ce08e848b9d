#include "athanor/cli/mesh_options.h"

#include "athanor/base/error.h"
#include "athanor/store/store.h"
#include "athanor/train/schedule.h"

namespace athanor {
namespace {

constexpr int64_t most_ranks = 1 << 20;
constexpr int64_t longest_ring = 1 << 14;  // a block has operations for each of its ranks

void add_axis_rows(OptionTable& table, Mesh& mesh) {
  const auto axis = [&](Axis which, const char* doc) -> OptionRow& {
    return table.add(std::string("mesh.") + name_of(which), mesh.sizes[static_cast<size_t>(which)], doc)
        .at_least(1)
        .at_most(most_ranks);
  };
  axis(Axis::pipeline, "Ranks that the layers are cut over. Not there yet: 1.");
  axis(Axis::replica,
       "Groups of ranks, each with samples of its own and all of the state: the outer half of data "
       "parallelism. May change on resume where train.micro_batch may.");
  axis(Axis::shard,
       "Ranks with samples of their own that may divide the state among them (mesh.zero): the inner half of "
       "data parallelism. May change on resume where train.micro_batch may.");
  axis(Axis::context, "Ranks that each sequence is cut over.").may_change();
  axis(Axis::tensor, "Ranks that heads, features and vocabulary are cut over; best within one host.")
      .may_change();
}

}  // namespace

void add_mesh_rows(OptionTable& table, RunOptions& options) {
  CompileOptions& compile = options.compile;
  table.describe_group("mesh",
                       "How ranks work together: a job has pipeline x replica x shard x context x tensor of "
                       "them. Losses and weights do not depend on it but for rounding, and a run may go on "
                       "with another mesh.");
  add_axis_rows(table, compile.layout.mesh);
  table
      .add("mesh.sequence_parallel", compile.layout.sequence_parallel,
           "Cut the residual stream along the sequence over axis tensor: less memory for the same "
           "communication.")
      .may_change();
  table
      .add_choice("mesh.context_form", compile.layout.context_form,
                  {{"ring", ContextForm::ring}, {"all_to_all", ContextForm::all_to_all}},
                  "With mesh.context: keys and values travel around a ring, or heads are cut instead of the "
                  "sequence while attention runs.")
      .may_change();
  table
      .add("mesh.zero", compile.zero_stage,
           "What mesh.shard divides: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too.")
      .at_least(0)
      .at_most(3)
      .may_change();
  table
      .add_choice("mesh.wire", compile.gradient_wire, {{"fp32", DType::fp32}, {"bf16", DType::bf16}},
                  "Type of gradients on their way between ranks; they are summed in fp32 in any case. With "
                  "fp64 compute: fp64.")
      .may_change();
  table
      .add("mesh.gather_window", compile.gather_window,
           "With mesh.zero 3: buckets (layers) whose weights are gathered at once; with 2 and 3 also those "
           "whose "
           "gradients are being reduced. More overlap more and take more memory.")
      .at_least(1)
      .at_most(10000)
      .may_change();
  table.describe_group("comm", "Communication between ranks.");
  table
      .add_choice("comm.algorithm", options.communication.algorithm,
                  {{"automatic", Algorithm::automatic},
                   {"one_shot", Algorithm::one_shot},
                   {"direct", Algorithm::direct},
                   {"ring", Algorithm::ring},
                   {"halving_doubling", Algorithm::halving_doubling},
                   {"double_tree", Algorithm::double_tree},
                   {"hierarchical", Algorithm::hierarchical}},
                  "Algorithm of every collective that has it; automatic: by size, group and hosts. The order "
                  "of sums depends on it.")
      .may_change();
  table
      .add("comm.timeout", options.communication.timeout_seconds,
           "Seconds that a collective of a step may take; then the run ends with a report of who is missing.")
      .above(0)
      .at_most(1e6)
      .may_change();
  table
      .add("comm.patience", options.communication.patience_seconds,
           "Seconds that ranks wait between steps for one that prepares data, reads or writes a "
           "checkpoint. One that dies or falls silent ends the run at once.")
      .above(0)
      .at_most(1e6)
      .may_change();
  table
      .add("comm.start_timeout", options.communication.start_timeout_seconds,
           "Seconds until all ranks must have found each other; then the run ends with a report of who is "
           "missing.")
      .above(0)
      .at_most(1e6)
      .may_change();
  table
      .add("comm.store", options.communication.store,
           "Where ranks of several tasks or hosts find each other: HOST:PORT for a store that the first task "
           "keeps, redis://HOST:PORT for Redis. Empty: ATHANOR_STORE, or chosen under Slurm; not needed on "
           "one host, where ranks are started by athanor itself.")
      .of_each_process();
  table
      .add("comm.listen", options.communication.listen,
           "Numeric address of this machine that ranks of other hosts connect to; empty: the one that leads "
           "to the store, and none where all ranks are on one host.")
      .of_each_process();
  table
      .add("comm.check_every", options.communication.check_every,
           "Steps between comparisons of the weights that several ranks hold, to the bit; a difference ends "
           "the run with the rank and the tensor. 0: never.")
      .at_least(0)
      .may_change();
}

void validate_mesh(const RunOptions& options) {
  const LayoutOptions& layout = options.compile.layout;
  const Mesh& mesh = layout.mesh;
  if (mesh.size(Axis::pipeline) > 1) {
    throw_user_error(
        fmt::format("mesh.pipeline is {}: pipelines are not there yet", mesh.size(Axis::pipeline)),
        "give those ranks to mesh.shard, mesh.tensor or mesh.context");
  }
  double ranks = 1;
  for (const Axis axis : {Axis::replica, Axis::shard, Axis::context, Axis::tensor}) ranks *= mesh.size(axis);
  if (ranks > static_cast<double>(most_ranks)) {
    throw_user_error(fmt::format("the mesh has {:.0f} ranks and may have {}", ranks, most_ranks),
                     "lower mesh.replica, mesh.shard, mesh.context or mesh.tensor");
  }
  if (layout.context_form == ContextForm::ring && mesh.size(Axis::context) > longest_ring) {
    throw_user_error(fmt::format("mesh.context is {}, and a ring may have {} ranks", mesh.size(Axis::context),
                                 longest_ring),
                     "lower it, or set mesh.context_form=all_to_all");
  }
  if (!options.communication.store.empty()) parse_store_address(options.communication.store);
  validate_batch(options.batch, options.micro_batch, mesh);
  layout_of(options.model, layout);
}

}  // namespace athanor
