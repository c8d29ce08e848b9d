#include "athanor/observe/svg_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

#include "athanor/observe/format.h"

namespace athanor {

namespace {

// Layout in user units, 1 pixel at natural size.
constexpr double width = 880, height = 500;
constexpr double left = 62, right = 856, top = 66, bottom = 442;
constexpr double legend_row = 20;
constexpr int widest_label = 40;  // columns

// Dark on white, and told apart by most kinds of colour blindness.
constexpr const char* train_color = "#1d4ed8";
constexpr const char* band_color = "#93b4f5";
constexpr const char* alarm_color = "#c81e1e";
constexpr std::array<const char*, 8> line_colors = {"#d9480f", "#0f766e", "#9333ea", "#b45309",
                                                    "#be185d", "#4d7c0f", "#0369a1", "#57534e"};

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string shortened(std::string_view label) {
  if (display_width(label) <= widest_label) return std::string(label);
  return fmt::format("{}\xe2\x80\xa6", fit_to_width(label, widest_label - 1));
}

class Drawing {
 public:
  explicit Drawing(const LossChart& chart) : chart_(chart) {}

  std::string render() {
    frame();
    grid();
    if (chart_.empty()) {
      text((left + right) / 2, (top + bottom) / 2, "middle", "empty", "no loss reported yet");
    } else {
      curves();
    }
    legend();
    return out_ + "</svg>\n";
  }

 private:
  double x(double step) const { return left + chart_.step.position(step) * (right - left); }
  double y(double loss) const { return bottom - chart_.loss.position(loss) * (bottom - top); }

  void text(double at_x, double at_y, const char* anchor, const char* style, std::string_view content) {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", at_x,
                        at_y, anchor, style, escaped(content));
  }

  void line(double x1, double y1, double x2, double y2, const char* style) {
    out_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1,
                        y1, x2, y2, style);
  }

  void frame() {
    out_ += fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" role=\"img\">\n",
        width, height);
    out_ += fmt::format("<title>Loss of {}</title>\n", escaped(chart_.title));
    out_ += fmt::format(
        "<style>\n"
        "text{{font-family:system-ui,-apple-system,'Segoe UI','DejaVu "
        "Sans',sans-serif;font-size:13px;fill:#4b5563}}\n"
        ".title{{font-size:18px;font-weight:600;fill:#111827}} .name{{fill:#1f2937}} "
        ".empty{{font-size:15px}}\n"
        ".grid{{stroke:#e5e7eb;stroke-width:1}} .axis{{stroke:#6b7280;stroke-width:1}}\n"
        ".train{{fill:none;stroke:{};stroke-width:2;stroke-linejoin:round;stroke-linecap:round}}\n"
        ".band{{fill:{};fill-opacity:0.45;stroke:{};stroke-opacity:0.55;stroke-width:0.8;stroke-linejoin:"
        "round}}\n"
        ".alarm{{stroke:{};stroke-width:1.2;stroke-dasharray:5 4}} .spike{{fill:{}}}\n"
        "</style>\n",
        train_color, band_color, band_color, alarm_color, alarm_color);
    out_ += fmt::format("<rect width=\"{:.0f}\" height=\"{:.0f}\" fill=\"#ffffff\"/>\n", width, height);
    out_ += fmt::format(
        "<clipPath id=\"plot\"><rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" "
        "height=\"{:.0f}\"/></clipPath>\n",
        left, top - 1, right - left + 4, bottom - top + 2);
    text(left, 32, "start", "title", shortened(chart_.title));
    text(left, 52, "start", "note", chart_.subtitle);
  }

  void grid() {
    for (const auto& tick : chart_.loss.ticks) {
      line(left, y(tick.value), right, y(tick.value), "grid");
      text(left - 8, y(tick.value) + 4.5, "end", "note", tick.label);
    }
    for (const auto& tick : chart_.step.ticks) {
      if (tick.value > 0) line(x(tick.value), top, x(tick.value), bottom, "grid");
      line(x(tick.value), bottom, x(tick.value), bottom + 4, "axis");
      text(x(tick.value), bottom + 19, "middle", "note", tick.label);
    }
    line(left, bottom, right, bottom, "axis");
    line(left, top, left, bottom, "axis");
    text((left + right) / 2, bottom + 42, "middle", "note", chart_.step_name);
    const double middle = (top + bottom) / 2;
    out_ += fmt::format(
        "<text x=\"16\" y=\"{0:.1f}\" text-anchor=\"middle\" transform=\"rotate(-90 16 "
        "{0:.1f})\">loss</text>\n",
        middle);
  }

  // Points as "x,y x,y", leaving out those that would fall on the same tenth of a pixel. Heights are cut at a
  // picture's distance beyond the plot, where the clip path hides them.
  std::string coordinates(const std::vector<ChartPoint>& points, bool backwards = false) const {
    std::string result, previous;
    for (size_t i = 0; i < points.size(); ++i) {
      const ChartPoint& point = points[backwards ? points.size() - 1 - i : i];
      std::string next =
          fmt::format("{:.1f},{:.1f}", x(point.x), std::clamp(y(point.y), -height, 2 * height));
      if (next == previous) continue;
      if (!result.empty()) result += ' ';
      result += next;
      previous = std::move(next);
    }
    return result;
  }

  void curves() {
    out_ += "<g clip-path=\"url(#plot)\">\n";
    if (chart_.smoothed) {
      out_ += fmt::format("<polygon class=\"band\" points=\"{} {}\"/>\n", coordinates(chart_.band_high),
                          coordinates(chart_.band_low, true));
    }
    if (chart_.non_finite_step)
      line(x(*chart_.non_finite_step), top, x(*chart_.non_finite_step), bottom, "alarm");
    out_ += fmt::format("<polyline class=\"train\" points=\"{}\"/>\n", coordinates(chart_.train.points));
    for (size_t i = 0; i < chart_.lines.size(); ++i) {
      const ChartLine& curve = chart_.lines[i];
      const char* color = color_of(i);
      const auto& points = curve.points;
      out_ += fmt::format(
          "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" "
          "stroke-linejoin=\"round\"{}/>\n",
          coordinates(points), color, dashes_of(curve));
      // Dots while they can be told apart.
      if (points.size() > 80 || (curve.style == LineStyle::plain && points.size() > 1)) continue;
      out_ += fmt::format("<g fill=\"{}\" stroke=\"#ffffff\" stroke-width=\"1.2\">\n", color);
      for (const auto& point : points) {
        out_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>\n", x(point.x), y(point.y));
      }
      out_ += "</g>\n";
    }
    if (chart_.train.points.size() == 1) {
      const auto& point = chart_.train.points[0];
      out_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", x(point.x),
                          y(point.y), train_color);
    }
    out_ += "</g>\n";
    spikes();
  }

  // Triangles at the upper edge, at most one every few pixels.
  void spikes() {
    double previous = -width;
    for (const double step : chart_.spikes) {
      const double at = x(step);
      if (at - previous < 7) continue;
      previous = at;
      out_ += fmt::format("<path class=\"spike\" d=\"M{:.1f} {:.1f}l4 7h-8z\"/>\n", at, top + 1);
    }
  }

  const char* color_of(size_t line) const {
    return line_colors[chart_.lines[line].color.value_or(line) % line_colors.size()];
  }

  static const char* dashes_of(const ChartLine& curve) {
    return curve.style == LineStyle::dashed_dots ? " stroke-dasharray=\"6 4\"" : "";
  }

  struct Entry {
    std::string label, value, mark;
  };

  std::vector<Entry> legend_entries() const {
    std::vector<Entry> entries;
    const auto stroke = [](const char* color, const char* dashes) {
      return fmt::format(
          "<path d=\"M0 0h22\" stroke=\"{}\" stroke-width=\"2.5\" stroke-linecap=\"round\"{}/>", color,
          dashes);
    };
    if (!chart_.train.points.empty()) {
      entries.push_back(
          {chart_.smoothed ? "train, smoothed" : "train", chart_.train.last_value, stroke(train_color, "")});
    }
    for (size_t i = 0; i < chart_.lines.size(); ++i) {
      const ChartLine& curve = chart_.lines[i];
      if (curve.label.empty()) continue;
      std::string mark = stroke(color_of(i), dashes_of(curve));
      if (curve.style != LineStyle::plain) {
        mark += fmt::format("<circle cx=\"11\" r=\"4\" fill=\"{}\"/>", color_of(i));
      }
      entries.push_back({shortened(curve.label), curve.last_value, std::move(mark)});
    }
    if (!chart_.spikes.empty()) {
      entries.push_back({"above the range", "", "<path class=\"spike\" d=\"M11 -4l4 7h-8z\"/>"});
    }
    if (chart_.non_finite_step) {
      entries.push_back(
          {fmt::format("not finite at step {}", format_exact(std::llround(*chart_.non_finite_step))), "",
           "<path class=\"alarm\" d=\"M0 0h22\"/>"});
    }
    return entries;
  }

  // In the upper right corner, which a falling curve leaves free.
  void legend() {
    const auto entries = legend_entries();
    if (entries.empty()) return;
    int columns = 0;
    size_t value_columns = 0;
    for (const auto& entry : entries) {
      columns = std::max(columns, display_width(entry.label));
      value_columns = std::max(value_columns, entry.value.size());
    }
    // Widths of a sans-serif face are not known here; these hold for common ones.
    const double label_width = 7.3 * columns, value_width = 8.0 * static_cast<double>(value_columns);
    const double box_width = 46 + label_width + value_width + 16;
    const double box_height = legend_row * static_cast<double>(entries.size()) + 12;
    const double box_left = right - box_width - 8, box_top = top + 10;
    out_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"5\" fill=\"#ffffff\" "
        "fill-opacity=\"0.95\" stroke=\"#d1d5db\"/>\n",
        box_left, box_top, box_width, box_height);
    for (size_t i = 0; i < entries.size(); ++i) {
      const double middle = box_top + 6 + legend_row * (static_cast<double>(i) + 0.5);
      out_ += fmt::format("<g transform=\"translate({:.1f} {:.1f})\">{}</g>\n", box_left + 12, middle,
                          entries[i].mark);
      text(box_left + 44, middle + 4.5, "start", "name", entries[i].label);
      text(box_left + box_width - 12, middle + 4.5, "end", "name", entries[i].value);
    }
  }

  const LossChart& chart_;
  std::string out_;
};

}  // namespace

std::string render_svg(const LossChart& chart) {
  return Drawing(chart).render();
}

}  // namespace athanor
