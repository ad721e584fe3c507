// Recomputes forward values in backward: the order in which their nodes are repeated.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Id of a value → the value that repeats it.
using Repeated = std::unordered_map<uint32_t, Value>;

/// Returns the repetition of `x`. Calls `add(y)` for each value y that must be repeated for it and
/// has no entry in `made` yet, operands first. `add` repeats the producer of y and enters its
/// results into `made`. `is_repeated(v)` tells whether repeated nodes read the repetition of v
/// (true) or v itself (false); it must hold for x. Not recursive, because chains may be long.
template <typename IsRepeated, typename Add>
Value repeat_value(Value x, const Repeated& made, const IsRepeated& is_repeated, const Add& add) {
  for (std::vector<Value> todo{x}; !todo.empty();) {
    const Value y = todo.back();
    if (made.count(y.id()) != 0) {
      todo.pop_back();
      continue;
    }
    const Node p = y.producer();
    const size_t waiting = todo.size();
    for (int i = p.input_count(); i-- > 0;) {
      const Value in = p.input(i);
      if (in && is_repeated(in) && made.count(in.id()) == 0) todo.push_back(in);
    }
    if (todo.size() == waiting) add(y);
  }
  return made.at(x.id());
}

/// The inputs of the repetition of `n`.
template <typename IsRepeated>
std::vector<Value> repeated_inputs(Node n, const Repeated& made, const IsRepeated& is_repeated) {
  std::vector<Value> inputs;
  for (int i = 0; i < n.input_count(); ++i) {
    const Value in = n.input(i);
    inputs.push_back(in && is_repeated(in) ? made.at(in.id()) : in);
  }
  return inputs;
}

}  // namespace steep
