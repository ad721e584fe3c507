// Looks through views.
#pragma once

#include "ops/pattern.h"

namespace steep {

/// The value that `v` is a Reshape or Flatten of, through any number of them; v itself if there are
/// none.
inline Value behind_views(Value v) {
  static constexpr Pattern kView("Reshape|Flatten(x, ...)");
  while (const auto m = match(kView, v)) v = (*m)["x"];
  return v;
}

}  // namespace steep
