// Numbers as people read them: counts, bytes, times, rates, shares.
//
// Called by every sink and by `cli`. Thread safety: pure functions. Not for files that programs read:
// those get full precision. Every function takes any value, NaN and infinity included.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace athanor {

// Three significant digits with k, M, B (10^9), T: "0", "999", "1.23k", "45.6M", "10.3B". Whole numbers
// below 1000 stay whole, others keep three digits: "0.123".
std::string format_count(double value);
std::string format_count(int64_t value);
// Every digit, in groups: "10,251,184,259".
std::string format_exact(int64_t value);
// The same before its noun: "1 token", "1,024 tokens".
std::string format_counted(int64_t count, std::string_view noun);
// "512 B", "1.50 KiB", "1.50 GiB".
std::string format_bytes(double bytes);
// Two units at most: "12.3 ms", "4.21 s", "3m 20s", "2h 05m", "3d 04h".
std::string format_seconds(double seconds);
// "1.23k tok/s".
std::string format_rate(double tokens_per_second);
// 0.853 -> "85.3%".
std::string format_share(double share);
// Four decimals below 100, else five significant digits: "2.3457", "123.46", "nan", "inf".
std::string format_loss(double loss);
// Three significant digits, in e-notation far from 1: "1.20", "0.0345", "3.00e-04".
std::string format_short(double value);

// Makes text safe to show and to embed: valid UTF-8 without control characters, each bad byte replaced
// by U+FFFD (by '?' if `ascii_only`, which replaces all that is not ASCII).
std::string printable(std::string_view text, bool ascii_only = false);
// The same for several lines: line feeds stay.
std::string printable_lines(std::string_view text, bool ascii_only = false);
// Columns that printable text takes on a terminal, one for each code point but combining marks (wide
// characters of East Asian scripts count two).
int display_width(std::string_view text);
// The longest prefix that fits into `columns`.
std::string_view fit_to_width(std::string_view text, int columns);

}  // namespace athanor
