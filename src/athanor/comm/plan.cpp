#include "athanor/comm/plan.h"

#include <fmt/core.h>

#include <array>

namespace athanor {
namespace {

std::string text_of(const PlanRegion& region) {
  constexpr std::array<std::string_view, 3> places = {"input", "output", "scratch"};
  return fmt::format("{}+{} {}x{}", places[static_cast<size_t>(region.place)], region.offset,
                     name_of(region.dtype), region.count);
}

}  // namespace

std::string_view name_of(StepKind kind) {
  constexpr std::array<std::string_view, 4> names = {"send", "receive", "copy", "reduce"};
  return names[static_cast<size_t>(kind)];
}

std::string to_text(const Plan& plan) {
  std::string text = fmt::format("{}, scratch {} bytes\n", name_of(plan.algorithm), plan.scratch_bytes);
  for (const Step& step : plan.steps) {
    text += name_of(step.kind);
    for (int32_t i = 0; i < step.awaits; ++i) {
      const Await& await = plan.awaits[static_cast<size_t>(step.first_await + i)];
      text += fmt::format(" [after {} took #{}]", await.peer, await.message);
    }
    for (int32_t i = 0; i < step.operands; ++i) {
      const PlanOperand& operand = plan.operands[static_cast<size_t>(step.first_operand + i)];
      text += operand.peer < 0 ? fmt::format(" {}", text_of(operand.region))
                               : fmt::format(" from {} {}x{}", operand.peer, name_of(operand.region.dtype),
                                             operand.region.count);
    }
    if (step.kind == StepKind::send)
      text += fmt::format(" {} to {}", text_of(step.region), step.peer);
    else
      text += fmt::format(" -> {}{}", step.offered ? "offered " : "", text_of(step.region));
    for (int32_t i = 0; i < step.readers; ++i)
      text += fmt::format("{}{}", i == 0 ? ", to " : " ",
                          plan.readers[static_cast<size_t>(step.first_reader + i)]);
    text += '\n';
  }
  return text;
}

}  // namespace athanor
