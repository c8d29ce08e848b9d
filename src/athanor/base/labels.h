// The label of a token that takes no part in the loss. Shared by data, which writes it, and kernels, which
// read it.
#pragma once

#include <cstdint>

namespace athanor {

inline constexpr int32_t ignored_label = -100;

}  // namespace athanor
