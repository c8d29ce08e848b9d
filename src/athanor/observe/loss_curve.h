// loss.svg: a picture of the loss of training and of every validation set, redrawn as the run goes on.
//
// Created by `train` for a run folder. Holds the whole run in bounded memory; on resume it is filled by
// replay_json_lines before the first step. The file is replaced atomically, so a viewer never sees half of
// it. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "athanor/base/clock.h"
#include "athanor/base/file_environment.h"
#include "athanor/observe/loss_chart.h"
#include "athanor/observe/loss_history.h"
#include "athanor/observe/report.h"

namespace athanor {

inline constexpr const char* loss_curve_file_name = "loss.svg";

class LossCurve final : public ReportSink {
 public:
  // Redraws when a report arrives `interval_seconds` after the last drawing began, and at `finish`.
  LossCurve(FileEnvironment& files, std::string path, std::string title, double interval_seconds,
            Clock& clock);

  void step(const StepReport& report) override;
  void validation(const ValidationReport& report) override;
  void finish() override;

  // Takes in what a resumed run reported before, without drawing.
  ReportSink& history_reader() { return reader_; }

  LossChart chart() const { return make_loss_chart(history_, title_, consumed_tokens_); }

 private:
  class Reader final : public ReportSink {
   public:
    explicit Reader(LossCurve& curve) : curve_(curve) {}
    void step(const StepReport& report) override { curve_.record(report); }
    void validation(const ValidationReport& report) override { curve_.record(report); }

   private:
    LossCurve& curve_;
  };

  void record(const StepReport& report);
  void record(const ValidationReport& report);
  void draw_if_due();

  FileEnvironment& files_;
  std::string path_, title_;
  double interval_seconds_;
  Clock& clock_;
  int64_t drawn_at_ns_;
  LossHistory history_;
  int64_t consumed_tokens_ = 0;
  Reader reader_{*this};
};

}  // namespace athanor
