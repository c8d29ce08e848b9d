// Progress of a command that works through a known or unknown amount: a bar on a terminal, a line now and
// then in a file or pipe.
//
// Created by commands. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "athanor/base/clock.h"
#include "athanor/observe/terminal.h"

namespace athanor {

class ProgressBar {
 public:
  struct State {
    std::string stage;  // what is being done, such as "counting words"
    int64_t done = 0;
    int64_t total = 0;        // 0: not known
    std::string detail = {};  // such as "12 MB/s"; shown if there is room
  };

  // `write` takes bytes for the screen or file; `columns` is asked for the width at every drawing.
  ProgressBar(TerminalOptions options, std::function<void(std::string_view)> write,
              std::function<int()> columns, Clock& clock);
  ~ProgressBar();  // as finish()
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // True if a drawing is due: what is costly to make can wait until then.
  bool is_due() const;
  // Draws, if it is due. Time left is reckoned from the pace since the stage began.
  void update(const State& state);
  // Clears the bar; a plain stream keeps its lines.
  void finish();

 private:
  const TerminalOptions options_;
  const std::function<void(std::string_view)> write_;
  const std::function<int()> columns_;
  Clock& clock_;
  std::optional<int64_t> drawn_at_;
  std::string stage_;
  int64_t stage_began_ns_ = 0, stage_began_done_ = 0;
  bool visible_ = false;
};

// For a stream that outlives the result.
std::unique_ptr<ProgressBar> make_progress_bar(std::FILE* stream);

// "counting words [######....]  61%  3.2 s left  12 MB/s", at most `columns` wide; without `unicode` in
// ASCII. `seconds_left` negative: not known.
std::string progress_line(const ProgressBar::State& state, double seconds_left, bool unicode, int columns);

}  // namespace athanor
