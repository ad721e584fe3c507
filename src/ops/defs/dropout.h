// What steep.Dropout shares with the operators that drop elements on the way.
#pragma once

#include "ops/op_def.h"

namespace steep {

inline constexpr Attribute kRatio{"ratio", 0.5};
/// Random operators of one graph are told apart by it.
inline constexpr Attribute kStream{"stream", 0};

}  // namespace steep
