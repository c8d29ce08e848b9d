// Draws a chart of the loss as an SVG picture of bounded size, with nothing outside of it needed.
//
// Called by loss_curve. Thread safety: pure.
#pragma once

#include <string>

#include "athanor/observe/loss_chart.h"

namespace athanor {

// UTF-8 text of a whole SVG file, below 256 KiB.
std::string render_svg(const LossChart& chart);

}  // namespace athanor
