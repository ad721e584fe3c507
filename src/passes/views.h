// What a value is another shape of.
#pragma once

#include "ops/pattern.h"

namespace steep {

/// The value whose bytes, under another shape, `v` is by way of Reshape and Flatten; v itself if it
/// is neither's.
inline Value behind_views(Value v) {
  static constexpr Pattern kView("Reshape|Flatten(x, ...)");
  while (const auto m = match(kView, v)) v = (*m)["x"];
  return v;
}

}  // namespace steep
