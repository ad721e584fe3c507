// Looks through views.
#pragma once

#include <vector>

#include "ops/pattern.h"

namespace steep {

/// The value that `v` is a Reshape or Flatten of, through any number of them; v itself if there are
/// none.
inline Value behind_views(Value v) {
  static constexpr Pattern kView("Reshape|Flatten(x, ...)");
  while (const auto m = match(kView, v)) v = (*m)["x"];
  return v;
}

/// Adds the readers of `v`, looking through views. Returns false if `v` or a view of it is an
/// output.
inline bool add_readers_behind_views(Value v, const Readers& readers, std::vector<Node>* found) {
  if (v.graph().is_output(v)) return false;
  for (Node n : readers.of(v)) {
    if (behind_views(n.output(0)) != n.output(0) && n.input(0) == v) {
      if (!add_readers_behind_views(n.output(0), readers, found)) return false;
    } else {
      found->push_back(n);
    }
  }
  return true;
}

}  // namespace steep
