// What a run says about itself, and the one interface of everything that passes it on.
//
// `train` fills a StepReport after each step and a ValidationReport after each pass over a validation
// set, and hands both to a ReportSinks. Every sink (terminal, JSON lines, TensorBoard, loss curve, log) gets
// the same numbers. Thread safety: reports are values; a sink is called by one thread at a time.
//
// A number that is not known is an empty optional; a NaN is a measured NaN. Sinks keep the two apart.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace athanor {

struct StepReport {
  int64_t step = 0;              // number of this step; the first of a run is 1
  int64_t consumed_samples = 0;  // since the start of the run, this step included
  int64_t consumed_tokens = 0;
  int64_t valid_tokens = 0;                            // labels of this step that counted in the loss
  std::optional<double> loss = std::nullopt;           // mean over the valid tokens; empty if there were none
  std::optional<double> gradient_norm = std::nullopt;  // of all gradients, before clipping
  double learning_rate = 0;
  double loss_scale = 1;
  double step_seconds = 0;
  double tokens_per_second = 0;
  std::optional<double> mfu = std::nullopt;                  // 1 = the machine's measured matrix-product peak
  std::optional<double> mfu_computed_blocks = std::nullopt;  // as mfu, counting only what is computed
  std::optional<double> seconds_left = std::nullopt;         // until the last step
  bool skipped = false;                                      // the weights were left as they were
  int64_t skipped_steps = 0;                                 // since the start of the run, this step included
  std::string event = {};  // "no valid tokens", "loss spike" ...; empty: none

  bool is_ordinary() const { return !skipped && event.empty(); }
};

struct ValidationReport {
  int64_t step = 0;      // the steps behind the weights that were judged; 0: the initial weights
  std::string set = {};  // name of the validation set
  std::optional<double> loss = std::nullopt;
  std::optional<double> perplexity = std::nullopt;
  int64_t tokens = 0;  // valid tokens the mean was taken over
};

enum class MessageKind : uint8_t { note, warning, error };

class ReportSink {
 public:
  virtual ~ReportSink() = default;
  // Each throws Error when what it writes to fails.
  virtual void step(const StepReport& report) = 0;
  virtual void validation(const ValidationReport& report) = 0;
  // A line of text for people: for the terminal and the run's log.
  virtual void message(MessageKind /*kind*/, const std::string& /*text*/) {}
  // The run ends, or pauses, here: everything reaches its destination. May be called more than once.
  virtual void finish() {}
};

// Hands every report to each of its sinks, in the order they were added.
class ReportSinks final : public ReportSink {
 public:
  // Returns the sink, which lives as long as this object.
  template <typename Sink>
  Sink& add(std::unique_ptr<Sink> sink) {
    Sink& reference = *sink;
    sinks_.push_back(std::move(sink));
    return reference;
  }
  void step(const StepReport& report) override {
    for (auto& sink : sinks_) sink->step(report);
  }
  void validation(const ValidationReport& report) override {
    for (auto& sink : sinks_) sink->validation(report);
  }
  void message(MessageKind kind, const std::string& text) override {
    for (auto& sink : sinks_) sink->message(kind, text);
  }
  // Finishes every sink, also after one failed, then throws the first failure.
  void finish() override;

 private:
  std::vector<std::unique_ptr<ReportSink>> sinks_;
};

}  // namespace athanor
