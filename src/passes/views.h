// What a value is another shape of.
#pragma once

#include "ir/graph.h"

namespace steep {

/// The value whose bytes, under another shape, `v` is by way of Reshape and Flatten; v itself if it
/// is neither's.
inline Value behind_views(Value v) {
  while (Node p = v.producer()) {
    if (p.op() != "Reshape" && p.op() != "Flatten") break;
    v = p.input(0);
  }
  return v;
}

}  // namespace steep
