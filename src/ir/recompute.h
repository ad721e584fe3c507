// Recomputes forward values in backward: the order in which their nodes are added.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Id of a value → the value that recomputes it.
using RecomputedValues = std::unordered_map<uint32_t, Value>;

/// Returns the value that recomputes `x`. Calls `add(y)` for each value y that must be recomputed
/// for it and has no entry in `copies` yet, operands first. `add` copies the producer of y and
/// enters the results of the copy into `copies`. `is_recomputed(v)` tells whether copies read the
/// recomputed v (true) or v itself (false); it must hold for x. Not recursive, because chains may
/// be long.
template <typename IsRecomputed, typename Add>
Value recompute_value(Value x, const RecomputedValues& copies, const IsRecomputed& is_recomputed,
                      const Add& add) {
  for (std::vector<Value> todo{x}; !todo.empty();) {
    const Value y = todo.back();
    if (copies.count(y.id()) != 0) {
      todo.pop_back();
      continue;
    }
    const Node p = y.producer();
    const size_t waiting = todo.size();
    for (int i = p.input_count(); i-- > 0;) {
      const Value in = p.input(i);
      if (in && is_recomputed(in) && copies.count(in.id()) == 0) todo.push_back(in);
    }
    if (todo.size() == waiting) add(y);
  }
  return copies.at(x.id());
}

/// The inputs of the copy of `n`.
template <typename IsRecomputed>
std::vector<Value> recomputed_inputs(Node n, const RecomputedValues& copies,
                                     const IsRecomputed& is_recomputed) {
  std::vector<Value> inputs;
  for (int i = 0; i < n.input_count(); ++i) {
    const Value in = n.input(i);
    inputs.push_back(in && is_recomputed(in) ? copies.at(in.id()) : in);
  }
  return inputs;
}

}  // namespace steep
