// Draws a chart of the loss with characters: braille dots (2 x 4 to a character) or plain ASCII.
//
// Called by `train` at the end of a run and by loss_curve's owner on demand. Thread safety: pure.
#pragma once

#include <string>

#include "athanor/observe/loss_chart.h"

namespace athanor {

struct TerminalChartOptions {
  int width = 80;       // columns, labels included; at least 30 are used
  int height = 18;      // lines, labels and legend included; at least 8 are used
  bool unicode = true;  // braille and box characters; false: ASCII only
  bool color = false;   // ANSI colours
};

// Lines that end in '\n', none wider than the width.
std::string render_terminal_chart(const LossChart& chart, const TerminalChartOptions& options);

}  // namespace athanor
