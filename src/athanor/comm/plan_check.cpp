#include "athanor/comm/plan_check.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "athanor/comm/plan_run.h"

namespace athanor {
namespace {

// Values are numbers of expressions; equal expressions have equal numbers.
class Expressions {
 public:
  static constexpr int none = -1;

  int contribution(int member, int64_t element) { return intern({Kind::contribution, member, element}); }
  int sum(int left, int right) {
    for (const int side : {left, right})
      if (at(side).kind == Kind::rounded && at(static_cast<int>(at(side).first)).kind == Kind::sum)
        throw std::runtime_error("a partial sum was rounded before it was complete");
    return intern({Kind::sum, left, right});
  }
  int rounded(int value, DType dtype) { return intern({Kind::rounded, value, static_cast<int64_t>(dtype)}); }

  // (member, element) of every contribution in an expression, sorted.
  std::vector<std::pair<int64_t, int64_t>> contributions(int value) const {
    std::vector<std::pair<int64_t, int64_t>> found;
    std::vector<int> open{value};
    while (!open.empty()) {
      const Expression each = at(open.back());
      open.pop_back();
      if (each.kind == Kind::contribution) {
        found.emplace_back(each.first, each.second);
      } else {
        open.push_back(static_cast<int>(each.first));
        if (each.kind == Kind::sum) open.push_back(static_cast<int>(each.second));
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  enum class Kind { contribution, sum, rounded };
  struct Expression {
    Kind kind;
    int64_t first, second;
    auto operator<=>(const Expression&) const = default;
  };
  const Expression& at(int value) const { return all_[static_cast<size_t>(value)]; }
  int intern(const Expression& expression) {
    const auto [place, added] = numbers_.try_emplace(expression, static_cast<int>(all_.size()));
    if (added) all_.push_back(expression);
    return place->second;
  }
  std::vector<Expression> all_;
  std::map<Expression, int> numbers_;
};

class Symbols {
 public:
  struct Message {
    PlanRegion region;
    std::vector<int> values;
  };

  Symbols(std::span<const CollectiveSpec> specs, std::span<const Plan> plans, bool in_place)
      : specs_(specs), in_place_(in_place), memory_(specs.size()) {
    for (size_t member = 0; member < specs.size(); ++member) fill(member, plans[member]);
  }

  Message send(int member, const PlanRegion& region) { return {region, read(member, region)}; }

  void combine(int member, const Plan& plan, const Step& step, std::span<const Message*> received) {
    if (!stays_in_place(member, plan, step)) check_overwriting(member, plan, step);
    std::vector<int> values;
    for (size_t i = 0; i < received.size(); ++i) {
      const PlanOperand& operand = plan.operands[static_cast<size_t>(step.first_operand) + i];
      const std::vector<int> more =
          received[i] != nullptr ? received[i]->values : read(member, operand.region);
      if (i == 0) {
        values = more;
      } else {
        for (size_t e = 0; e < values.size(); ++e) values[e] = expressions_.sum(values[e], more[e]);
      }
    }
    const bool plain =
        step.operands == 1 &&
        plan.operands[static_cast<size_t>(step.first_operand)].region.dtype == step.region.dtype;
    if (!plain && size_of(step.region.dtype) < size_of(plan.accumulator))
      for (int& value : values) value = expressions_.rounded(value, step.region.dtype);
    write(member, step.region, values);
  }

  bool overlap(int member, const PlanRegion& a, const PlanRegion& b) const {
    const Extent first = extent(member, a), second = extent(member, b);
    return first.space == second.space && first.begin < second.end && second.begin < first.end;
  }

  // Compares every output with what it must be.
  void check_results() {
    for (size_t member = 0; member < specs_.size(); ++member) {
      const auto m = static_cast<int>(member);
      const int64_t count = output_count(specs_[member], m);
      for (int64_t element = 0; element < count; ++element) {
        const PlanRegion cell{Place::output, specs_[member].dtype,
                              element * static_cast<int64_t>(size_of(specs_[member].dtype)), 1};
        const int value = read(m, cell)[0];
        if (expressions_.contributions(value) != expected(m, element))
          throw std::runtime_error(
              fmt::format("element {} of member {} is not what it should be", element, m));
        const CollectiveKind kind = specs_[member].kind;
        if (kind != CollectiveKind::all_reduce && kind != CollectiveKind::all_gather) continue;
        // The same expression is the same bits.
        const auto [place, added] = agreed_.try_emplace(element, value);
        if (!added && place->second != value)
          throw std::runtime_error(fmt::format("members differ in the order of sums of element {}", element));
      }
    }
  }

 private:
  struct Extent {
    int space;
    int64_t begin, end;
  };
  struct Memory {
    std::array<std::vector<int>, 3> places;  // by byte: the value that begins there
    int64_t input_shift = 0, output_shift = 0;
  };

  void fill(size_t member, const Plan& plan) {
    const CollectiveSpec& spec = specs_[member];
    const auto m = static_cast<int>(member);
    Memory& memory = memory_[member];
    const auto size = static_cast<int64_t>(size_of(spec.dtype));
    if (in_place_ &&
        (spec.kind == CollectiveKind::all_gather || spec.kind == CollectiveKind::reduce_scatter)) {
      const int64_t own = size * std::accumulate(spec.counts.begin(), spec.counts.begin() + m, int64_t{0});
      (spec.kind == CollectiveKind::all_gather ? memory.input_shift : memory.output_shift) = own;
    }
    const int64_t most = size * std::max(std::accumulate(spec.counts.begin(), spec.counts.end(), int64_t{0}),
                                         output_count(spec, m));
    for (auto& place : memory.places) place.assign(static_cast<size_t>(most), Expressions::none);
    memory.places[2].assign(static_cast<size_t>(plan.scratch_bytes), Expressions::none);
    std::vector<int> values;
    for (int64_t e = 0; e < input_count(spec, m); ++e) values.push_back(expressions_.contribution(m, e));
    write(m, {Place::input, spec.dtype, 0, input_count(spec, m)}, values);
  }

  Extent extent(int member, const PlanRegion& region) const {
    const Memory& memory = memory_[static_cast<size_t>(member)];
    int64_t begin = region.offset;
    auto space = static_cast<int>(region.place);
    if (region.place == Place::input) begin += memory.input_shift;
    if (region.place == Place::output) begin += memory.output_shift;
    if (in_place_ && region.place == Place::output) space = static_cast<int>(Place::input);
    return {space, begin, begin + region.bytes()};
  }

  int& cell(int member, const PlanRegion& region, int64_t element) {
    const Extent where = extent(member, region);
    auto& place = memory_[static_cast<size_t>(member)].places[static_cast<size_t>(where.space)];
    const int64_t size = static_cast<int64_t>(size_of(region.dtype));
    const int64_t at = where.begin + element * size;
    if (at < 0 || at + size > static_cast<int64_t>(place.size()))
      throw std::runtime_error(fmt::format("member {} reaches over the end of its memory", member));
    return place[static_cast<size_t>(at)];
  }

  std::vector<int> read(int member, const PlanRegion& region) {
    std::vector<int> values;
    for (int64_t e = 0; e < region.count; ++e) {
      values.push_back(cell(member, region, e));
      if (values.back() == Expressions::none)
        throw std::runtime_error(fmt::format("member {} reads what was never written", member));
    }
    return values;
  }

  void write(int member, const PlanRegion& region, const std::vector<int>& values) {
    const auto size = static_cast<int64_t>(size_of(region.dtype));
    for (int64_t e = 0; e < region.count; ++e) {
      int* const first = &cell(member, region, e);
      std::fill(first, first + size, Expressions::none);
      *first = values[static_cast<size_t>(e)];
    }
  }

  // A copy of a region to itself changes nothing.
  bool stays_in_place(int member, const Plan& plan, const Step& step) const {
    if (step.kind != StepKind::copy) return false;
    const PlanRegion& source = plan.operands[static_cast<size_t>(step.first_operand)].region;
    const Extent from = extent(member, source), to = extent(member, step.region);
    return source.dtype == step.region.dtype && from.space == to.space && from.begin == to.begin;
  }

  // Whatever was sent from where a step writes must be awaited, by this step or an earlier one.
  void check_overwriting(int member, const Plan& plan, const Step& step) {
    const Extent target = extent(member, step.region);
    const auto until = static_cast<size_t>(&step - plan.steps.data());
    std::map<int32_t, int64_t> taken;  // by peer: messages known to have been read
    for (size_t i = 0; i <= until; ++i)
      for (int32_t k = 0; k < plan.steps[i].awaits; ++k) {
        const Await& await = plan.awaits[static_cast<size_t>(plan.steps[i].first_await + k)];
        taken[await.peer] = std::max(taken[await.peer], await.message + 1);
      }
    std::map<int32_t, int64_t> sent;
    const auto check = [&](int32_t peer, const PlanRegion& region) {
      const int64_t message = sent[peer]++;
      const Extent source = extent(member, region);
      if (message >= taken[peer] && source.space == target.space && source.begin < target.end &&
          target.begin < source.end)
        throw std::runtime_error(
            fmt::format("member {} overwrites what member {} may still read (step {})", member, peer, until));
    };
    for (size_t i = 0; i < until; ++i) {
      const Step& earlier = plan.steps[i];
      if (earlier.kind == StepKind::send) check(earlier.peer, earlier.region);
      for (int32_t k = 0; k < earlier.readers; ++k)
        check(plan.readers[static_cast<size_t>(earlier.first_reader + k)], earlier.region);
    }
  }

  std::vector<std::pair<int64_t, int64_t>> expected(int member, int64_t element) const {
    const CollectiveSpec& spec = specs_[static_cast<size_t>(member)];
    std::vector<std::pair<int64_t, int64_t>> contributions;
    const auto n = static_cast<int>(specs_.size());
    const auto begin = [](const std::vector<int64_t>& counts, int block) {
      return std::accumulate(counts.begin(), counts.begin() + block, int64_t{0});
    };
    switch (spec.kind) {
      case CollectiveKind::all_reduce:
        for (int from = 0; from < n; ++from) contributions.emplace_back(from, element);
        break;
      case CollectiveKind::reduce_scatter:
        for (int from = 0; from < n; ++from)
          contributions.emplace_back(from, begin(spec.counts, member) + element);
        break;
      case CollectiveKind::all_gather:
      case CollectiveKind::all_to_all: {
        const bool exchange = spec.kind == CollectiveKind::all_to_all;
        const std::vector<int64_t>& counts = exchange ? spec.receive_counts : spec.counts;
        int from = 0;
        while (element >= begin(counts, from + 1)) ++from;
        int64_t source = element - begin(counts, from);
        if (exchange) source += begin(specs_[static_cast<size_t>(from)].counts, member);
        contributions.emplace_back(from, source);
        break;
      }
      default:
        contributions.emplace_back(spec.root, element);
    }
    return contributions;
  }

  std::span<const CollectiveSpec> specs_;
  const bool in_place_;
  std::vector<Memory> memory_;
  Expressions expressions_;
  std::map<int64_t, int> agreed_;
};

}  // namespace

std::string find_plan_fault(std::span<const CollectiveSpec> specs, std::span<const Plan> plans,
                            bool in_place) {
  try {
    Symbols symbols(specs, plans, in_place);
    PlanRun run(plans, symbols);
    std::string fault = run.run();
    if (fault.empty()) symbols.check_results();
    return fault;
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

}  // namespace athanor
