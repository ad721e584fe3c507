// What small integer values hold, as far as the graph tells before it runs:
// `Concat(Gather(Shape(x), 0), -1)` and the like. ONNX's own data propagation covers a part of
// this; here is the rest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// One element: a number, a symbol (the extent of some axis, hence not negative), or neither:
/// unknown.
struct Element {
  std::optional<int64_t> number{};
  std::string symbol{};
};
using Elements = std::vector<Element>;

/// The elements of an integer or bool value of rank at most 1; absent when nothing is known.
std::optional<Elements> elements_of(Value v);

/// The elements of a node's first output, from those of its inputs. REQUIRES: the output's type is
/// inferred. Absent when the operator is no shape arithmetic, or nothing is known. Never throws for
/// bad operands: what would be an error at run time (a division by zero) is unknown here.
std::optional<Elements> evaluate_elements(Node n);

/// Notes evaluate_elements() as the contents of the output, beside what ONNX's propagation found.
void propagate_contents(Node n);

/// The output as a tensor, when every element is a number.
std::optional<Tensor> known_result(Node n);

}  // namespace steep
