#include "athanor/data/blend.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr int64_t largest_total = int64_t{1} << 53;
constexpr int64_t mark_distance = 4096;
constexpr size_t most_marks = 50;

struct Decimal {
  int64_t digits = 0;
  int exponent = 0;  // digits * 10^exponent
};

[[noreturn]] void refuse_weight(const std::string& text) {
  throw_user_error(fmt::format("'{}' is no weight", text.substr(0, 60)),
                   "a weight is a decimal number of at least 0, as 3 or 0.7 or 1e-9");
}

Decimal parse_decimal(const std::string& text) {
  Decimal number;
  size_t i = 0;
  bool any = false, point = false;
  for (; i < text.size(); ++i) {
    if (text[i] == '.' && !point) {
      point = true;
    } else if (text[i] >= '0' && text[i] <= '9') {
      if (number.digits > largest_total / 10) refuse_weight(text);
      number.digits = number.digits * 10 + (text[i] - '0');
      number.exponent -= point ? 1 : 0;
      any = true;
    } else {
      break;
    }
  }
  if (!any) refuse_weight(text);
  if (i < text.size()) {
    int exponent = 0;
    const char* begin = text.data() + i + 1;
    const char* end = text.data() + text.size();
    if (end - begin > 1 && *begin == '+' && begin[1] != '-') ++begin;
    const auto result = std::from_chars(begin, end, exponent);
    const bool right = (text[i] == 'e' || text[i] == 'E') && result.ec == std::errc{} && result.ptr == end;
    if (!right || exponent < -1000 || exponent > 1000) refuse_weight(text);
    number.exponent += exponent;
  }
  while (number.digits != 0 && number.digits % 10 == 0) {
    number.digits /= 10;
    ++number.exponent;
  }
  return number;
}

Wide wide(int64_t value) {
  return static_cast<Wide>(static_cast<uint64_t>(value));
}

int64_t floor_share(int64_t n, int64_t weight, int64_t total) {
  return static_cast<int64_t>(wide(n) * wide(weight) / wide(total));
}

int64_t ceil_share(int64_t n, int64_t weight, int64_t total) {
  return static_cast<int64_t>((wide(n) * wide(weight) + wide(total - 1)) / wide(total));
}

}  // namespace

void check_weight(const std::string& decimal) {
  parse_decimal(decimal);
}

std::vector<int64_t> whole_weights(std::span<const std::string> decimals) {
  std::vector<Decimal> numbers;
  int least = std::numeric_limits<int>::max();
  for (const std::string& text : decimals) {
    numbers.push_back(parse_decimal(text));
    if (numbers.back().digits != 0) least = std::min(least, numbers.back().exponent);
  }
  std::vector<int64_t> weights;
  int64_t total = 0, divisor = 0;
  const auto refuse_width = [&] {
    std::string list;
    for (const std::string& text : decimals) list += (list.empty() ? "" : ", ") + text.substr(0, 60);
    throw_user_error(fmt::format("the weights {} have too many digits together", list),
                     "as whole numbers in the same proportion they must stay below 2^53 in all");
  };
  for (const Decimal& number : numbers) {
    int64_t weight = number.digits;
    for (int exponent = number.exponent; number.digits != 0 && exponent > least; --exponent) {
      if (weight > largest_total / 10) refuse_width();
      weight *= 10;
    }
    weights.push_back(weight);
    divisor = std::gcd(divisor, weight);
  }
  if (divisor == 0) throw_user_error("all weights are 0", "give at least one source a weight above 0");
  for (int64_t& weight : weights) {
    weight /= divisor;
    total += weight;
    if (total > largest_total) refuse_width();
  }
  return weights;
}

BlendOrder::BlendOrder(std::vector<int64_t> weights)
    : BlendOrder(weights, 0, std::vector<int64_t>(weights.size())) {}

BlendOrder::BlendOrder(std::vector<int64_t> weights, int64_t n, std::vector<int64_t> counts)
    : weights_(std::move(weights)), known_{n, std::move(counts)} {
  for (const int64_t weight : weights_) {
    ATHANOR_ASSERT(weight >= 0 && weight <= largest_total - total_);
    total_ += weight;
  }
  ATHANOR_ASSERT(total_ > 0 && possible(n, known_.counts));
  cursor_ = known_;
}

BlendOrder::BlendOrder(const BlendOrder& other)
    : weights_(other.weights_), total_(other.total_), known_(other.known_), cursor_(other.known_) {}

int64_t BlendOrder::most(size_t source, int64_t n) const {
  return ceil_share(n, weights_[source], total_);
}

bool BlendOrder::possible(int64_t n, std::span<const int64_t> counts) const {
  if (n < 0 || counts.size() != weights_.size()) return false;
  int64_t sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < floor_share(n, weights_[i], total_) || counts[i] > ceil_share(n, weights_[i], total_))
      return false;
    sum += counts[i];
  }
  return sum == n;
}

size_t BlendOrder::next(const Cursor& cursor) const {
  // Counted from where all began anew last, so that products fit.
  const int64_t periods = cursor.n / total_, place = cursor.n % total_;
  size_t chosen = weights_.size();
  Wide earliest = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Wide weight = wide(weights_[i]), drawn = wide(cursor.counts[i] - periods * weights_[i]);
    if (drawn * wide(total_) >= wide(place + 1) * weight) continue;  // its next place is not here yet
    const Wide deadline = ((drawn + 1) * wide(total_) + weight - 1) / weight;
    if (chosen < weights_.size() && deadline >= earliest) continue;
    chosen = i;
    earliest = deadline;
  }
  if (chosen == weights_.size()) {
    throw_user_error("the counts of the data's sources do not belong to their weights",
                     "the saved position is damaged");
  }
  return chosen;
}

void BlendOrder::move_to(int64_t n) const {
  if (cursor_.n > n) {
    while (!marks_.empty() && marks_.back().n > n) marks_.pop_back();
    cursor_ = marks_.empty() ? known_ : marks_.back();
  }
  const int64_t periods = n / total_;
  if (cursor_.n > n || periods * total_ > cursor_.n) {
    cursor_.n = periods * total_;
    for (size_t i = 0; i < weights_.size(); ++i) cursor_.counts[i] = periods * weights_[i];
  }
  while (cursor_.n < n) {
    ++cursor_.counts[next(cursor_)];
    if (++cursor_.n % mark_distance != 0 || (!marks_.empty() && marks_.back().n >= cursor_.n)) continue;
    marks_.push_back(cursor_);
    if (marks_.size() > most_marks) marks_.pop_front();
  }
}

BlendOrder::Draw BlendOrder::draw(int64_t n) const {
  ATHANOR_ASSERT(n >= 0, "place {}", n);
  const std::lock_guard lock(mutex_);
  move_to(n);
  const size_t source = next(cursor_);
  return {source, cursor_.counts[source]};
}

std::vector<int64_t> BlendOrder::counts(int64_t n) const {
  ATHANOR_ASSERT(n >= 0, "place {}", n);
  const std::lock_guard lock(mutex_);
  move_to(n);
  return cursor_.counts;
}

}  // namespace athanor
