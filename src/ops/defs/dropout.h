// Shared by steep.Dropout and other operators that include a dropout.
#pragma once

#include "ops/op_def.h"

namespace steep {

inline constexpr Attribute kRatio{"ratio", 0.5};
/// Number that separates the random operators of one graph.
inline constexpr Attribute kStream{"stream", 0};

}  // namespace steep
