#include "athanor/observe/format.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "athanor/base/plural.h"

namespace athanor {

namespace {

std::string non_finite(double value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

// Three significant digits of a magnitude in [0, 1000).
std::string three_digits(double value) {
  const double magnitude = std::abs(value);
  if (magnitude < 9.995) return fmt::format("{:.2f}", value);
  if (magnitude < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

// Scales down by `base` while three digits would show `base` or more. Returns the index of the unit.
size_t scale(double& value, double base, size_t units) {
  size_t unit = 0;
  // Decimal steps are taken where rounding to three digits would print 1000.
  const double limit = base == 1000.0 ? 999.5 : base - 0.5;
  while (std::abs(value) >= limit && unit + 1 < units) {
    value /= base;
    ++unit;
  }
  return unit;
}

struct Decoded {
  char32_t code = 0;
  size_t bytes = 1;
  bool valid = false;
};

// The code point at the start of `text` (not empty). Overlong forms, surrogates and values beyond
// U+10FFFF are invalid and count one byte.
Decoded decode(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  size_t length = 0;
  char32_t code = 0, least = 0;
  if ((lead & 0xe0U) == 0xc0U) {
    length = 2, code = lead & 0x1fU, least = 0x80;
  } else if ((lead & 0xf0U) == 0xe0U) {
    length = 3, code = lead & 0x0fU, least = 0x800;
  } else if ((lead & 0xf8U) == 0xf0U) {
    length = 4, code = lead & 0x07U, least = 0x10000;
  } else {
    return {};
  }
  if (text.size() < length) return {};
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {};
    code = (code << 6) | (byte(i) & 0x3fU);
  }
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < least || code > 0x10ffff || surrogate) return {};
  return {code, length, true};
}

bool is_control(char32_t code) {
  // C0, DEL and C1; the two code points that XML forbids; the marks that turn the writing direction.
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0xfffe || code == 0xffff ||
         (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

int width_of(char32_t code) {
  struct Range {
    char32_t first, last;
  };
  static constexpr std::array<Range, 5> combining = {
      {{0x300, 0x36f}, {0x1ab0, 0x1aff}, {0x200b, 0x200f}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}}};
  static constexpr std::array<Range, 7> wide = {{{0x1100, 0x115f},
                                                 {0x2e80, 0xa4cf},
                                                 {0xac00, 0xd7a3},
                                                 {0xf900, 0xfaff},
                                                 {0xfe30, 0xfe6f},
                                                 {0xff00, 0xff60},
                                                 {0x1f300, 0x1faff}}};
  const auto in = [code](const Range& range) { return code >= range.first && code <= range.last; };
  if (std::any_of(combining.begin(), combining.end(), in)) return 0;
  return std::any_of(wide.begin(), wide.end(), in) ? 2 : 1;
}

}  // namespace

std::string format_count(double value) {
  if (!std::isfinite(value)) return non_finite(value);
  static constexpr std::array<const char*, 5> units = {"", "k", "M", "B", "T"};
  double scaled = value;
  const size_t unit = scale(scaled, 1000.0, units.size());
  if (std::abs(scaled) >= 999.5) return fmt::format("{:.3g}{}", scaled, units[unit]);
  if (unit == 0 && scaled == std::floor(scaled)) return fmt::format("{:.0f}", scaled);
  if (unit == 0 && std::abs(scaled) < 1.0) return fmt::format("{:.3g}", scaled);
  return three_digits(scaled) + units[unit];
}

std::string format_count(int64_t value) {
  return format_count(static_cast<double>(value));
}

std::string format_exact(int64_t value) {
  std::string text = fmt::format("{}", value);
  const ptrdiff_t first = value < 0 ? 1 : 0;
  for (auto at = static_cast<ptrdiff_t>(text.size()) - 3; at > first; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

std::string format_counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_exact(count), noun, plural(count));
}

std::string format_bytes(double bytes) {
  if (!std::isfinite(bytes)) return non_finite(bytes);
  static constexpr std::array<const char*, 6> units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double scaled = bytes;
  const size_t unit = scale(scaled, 1024.0, units.size());
  if (unit == 0 || std::abs(scaled) >= 999.5) return fmt::format("{:.0f} {}", scaled, units[unit]);
  return three_digits(scaled) + " " + units[unit];
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) return non_finite(seconds);
  if (seconds < 0) return fmt::format("-{}", format_seconds(-seconds));
  if (seconds == 0) return "0 s";
  if (seconds < 0.9995e-6) return three_digits(seconds * 1e9) + " ns";
  if (seconds < 0.9995e-3) return three_digits(seconds * 1e6) + " us";
  if (seconds < 0.9995) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return three_digits(seconds) + " s";
  if (seconds > 3.15e11) return fmt::format("{:.3g} years", seconds / 31556952.0);
  const auto total = static_cast<int64_t>(std::llround(seconds));
  constexpr int64_t minute = 60, hour = 3600, day = 86400;
  if (total < hour) return fmt::format("{}m {:02}s", total / minute, total % minute);
  const int64_t minutes = (total + minute / 2) / minute;
  if (minutes * minute < day) return fmt::format("{}h {:02}m", minutes / 60, minutes % 60);
  const int64_t hours = (total + hour / 2) / hour;
  return fmt::format("{}d {:02}h", hours / 24, hours % 24);
}

std::string format_rate(double tokens_per_second) {
  return format_count(tokens_per_second) + " tok/s";
}

std::string format_share(double share) {
  if (!std::isfinite(share)) return non_finite(share);
  return fmt::format("{:.1f}%", share * 100.0);
}

std::string format_loss(double loss) {
  if (!std::isfinite(loss)) return non_finite(loss);
  return std::abs(loss) < 99.99995 ? fmt::format("{:.4f}", loss) : fmt::format("{:.5g}", loss);
}

std::string format_short(double value) {
  if (!std::isfinite(value)) return non_finite(value);
  const double magnitude = std::abs(value);
  if (value == 0) return "0";
  if (magnitude < 0.00995 || magnitude >= 9995.0) return fmt::format("{:.2e}", value);
  if (magnitude < 0.0995) return fmt::format("{:.4f}", value);
  if (magnitude < 0.9995) return fmt::format("{:.3f}", value);
  return three_digits(value);
}

std::string printable(std::string_view text, bool ascii_only) {
  std::string result;
  result.reserve(text.size());
  const std::string_view replacement = ascii_only ? "?" : "\xef\xbf\xbd";
  while (!text.empty()) {
    const Decoded decoded = decode(text);
    const bool keep = decoded.valid && !is_control(decoded.code) && !(ascii_only && decoded.code >= 0x80);
    result += keep ? text.substr(0, decoded.bytes) : replacement;
    text.remove_prefix(decoded.bytes);
  }
  return result;
}

std::string printable_lines(std::string_view text, bool ascii_only) {
  std::string result;
  for (size_t feed; (feed = text.find('\n')) != std::string_view::npos; text.remove_prefix(feed + 1)) {
    result += printable(text.substr(0, feed), ascii_only) + '\n';
  }
  return result + printable(text, ascii_only);
}

int display_width(std::string_view text) {
  int width = 0;
  while (!text.empty()) {
    const Decoded decoded = decode(text);
    width += width_of(decoded.code);
    text.remove_prefix(decoded.bytes);
  }
  return width;
}

std::string_view fit_to_width(std::string_view text, int columns) {
  size_t end = 0;
  while (end < text.size()) {
    const Decoded decoded = decode(text.substr(end));
    columns -= width_of(decoded.code);
    if (columns < 0) break;
    end += decoded.bytes;
  }
  return text.substr(0, end);
}

}  // namespace athanor
