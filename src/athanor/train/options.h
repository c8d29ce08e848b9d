// Everything a training run can be told, as plain structs. The option table of cli binds its rows to them.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "athanor/comm/collective.h"
#include "athanor/compile/options.h"
#include "athanor/data/chat_template.h"
#include "athanor/model/config.h"
#include "athanor/train/engine.h"

namespace athanor {

enum class ScheduleKind : uint8_t { constant, linear, cosine, warmup_stable_decay };

// The learning rate as a function of consumed samples: `rate` after a linear warm-up, down to `minimum_rate`.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::cosine;
  double rate = 3e-4;
  double minimum_rate = 0;
  int64_t warmup_samples = 0;
  int64_t decay_samples = 0;  // warmup_stable_decay: length of the decay at the end
};

// Samples of one optimizer step: `batch`, reached from `ramp_from` in equal steps over `ramp_samples`.
struct BatchSizeOptions {
  int64_t batch = 0;         // 0: one micro-batch
  int64_t ramp_from = 0;     // 0: no ramp
  int64_t ramp_step = 0;     // growth at a time; 0: one micro-batch
  int64_t ramp_samples = 0;  // consumed samples at which `batch` is reached
};

// Where the parts kept back for validation and test come from.
enum class SplitKind : uint8_t {
  tail,       // the last tokens of the training data
  documents,  // documents drawn from all of it
};

// How samples are cut from tokens.
enum class Packing : uint8_t {
  stream,     // windows of all documents one after another
  documents,  // windows of whole documents
};

struct DataOptions {
  std::string train;                              // see find_input_files; or
  std::map<std::string, std::string> blend;       // name -> "WEIGHT:DATA"
  std::map<std::string, std::string> validation;  // name -> data
  double validation_fraction = 0;                 // kept back from training for "validation"
  double test_fraction = 0;                       // kept back from training and not used
  SplitKind split = SplitKind::tail;
  std::string tokenizer = "bytes";  // of texts; see open_tokenizer
  std::string separator;            // line that ends a document of a text file
  std::string field = "text";       // of JSON lines
  ChatTemplate chat = ChatTemplate::plain;
  std::string cache = "data/cache";  // where token files made of texts are kept
  int64_t sequence_length = 256;
  Packing packing = Packing::stream;
  bool reset_positions = false, mask_documents = false;
  double max_epochs = 0;  // of each source; 0: any number
  int64_t prefetch = 4;
  bool change = false;  // on resume, go on with another blend
};

enum class SpikePolicy : uint8_t { off, warn, skip, stop };

struct SpikeOptions {
  SpikePolicy policy = SpikePolicy::warn;
  double z_score = 6;    // standard deviations above the running mean
  int64_t window = 200;  // steps the mean and deviation look back over
};

// Dynamic loss scaling, in fp16 only.
struct LossScaleOptions {
  double initial = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 1000;  // steps without overflow before the scale grows
  double minimum = 1;
};

struct ValidationOptions {
  int64_t every = 0;         // steps; 0: only at the end
  int64_t samples = 0;       // of each set; 0: all
  bool use_average = false;  // judge the averaged weights, where averaging is on
};

struct CheckpointingOptions {
  int64_t every = 0;  // steps; 0: only at the end
  int64_t keep = 2;
};

struct SampleOptions {
  int64_t length = 0;  // tokens written at the end; 0: none
  std::string prompt = "\n";
  double temperature = 0.8;
  int64_t top_k = 0;  // 0: all
};

struct DumpOptions {
  std::vector<std::string> names;  // logical names
  int64_t step = 1;                // the step in which they are written
};

// Between ranks; how they share the work stands in CompileOptions.
struct CommunicationOptions {
  Algorithm algorithm = Algorithm::automatic;
  double timeout_seconds = 600;        // of one collective
  double patience_seconds = 14'400;    // of waiting for another rank outside of steps
  double start_timeout_seconds = 300;  // until the ranks have found each other
  int64_t check_every = 100;           // steps between comparisons of what several ranks hold; 0: never
  std::string store, listen;  // of jobs on several hosts: where the ranks find each other, and listen
};

// What happens when the run folder already holds a run.
enum class ExistingRun : uint8_t {
  number,  // take the first free of NAME-2, NAME-3, ...
  resume,  // go on with it
  refuse,
};

struct RunOptions {
  std::string name = "run";
  std::string folder = "runs";
  ExistingRun existing = ExistingRun::number;
  int64_t steps = 100;
  int64_t micro_batch = 8;  // samples that a rank computes at once
  uint64_t seed = 1;
  int threads = 0;
  KernelSet kernels = KernelSet::cpu;
  bool resume = false;
  std::string init_from;         // where the first weights come from; empty: random ones
  bool init_optimizer = false;   // the optimizer's state too
  bool measure_peak = true;      // a second or so at the start; without it there is no MFU
  double wall_time_seconds = 0;  // 0: no limit
  std::string model_base;        // name of the model file that `model` began from; for display
  ModelConfig model;
  CompileOptions compile;
  ScheduleOptions schedule;
  BatchSizeOptions batch;
  DataOptions data;
  SpikeOptions spike;
  LossScaleOptions loss_scale;
  ValidationOptions validation;
  CheckpointingOptions checkpoint;
  SampleOptions sample;
  DumpOptions dump;
  CommunicationOptions communication;

  const Mesh& mesh() const { return compile.layout.mesh; }
  // A micro-batch of every rank that has samples of its own.
  int64_t samples_at_once() const { return micro_batch * mesh().data_ranks(); }
  std::string run_folder() const { return folder.empty() ? name : folder + "/" + name; }
};

}  // namespace athanor
