// The elements of small integer values that the graph determines before it runs:
// `Concat(Gather(Shape(x), 0), -1)` and the like. ONNX's data propagation covers only some of
// these.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops/op_def.h"

namespace steep {

/// One element: a number, a symbol (an extent of some axis, hence not negative), or unknown.
struct Element {
  std::optional<int64_t> number{};
  std::string symbol{};
};

/// The elements of an integer or bool value of rank at most 1; absent when the value is unknown.
std::optional<Elements> elements_of(Value v);

/// The elements of a node's first output, computed from those of its inputs. Absent when the
/// operator has no rule or nothing is known. Never throws for bad operands: where a run would fail
/// (division by zero) the element is unknown. REQUIRES: the output's type is inferred.
std::optional<Elements> evaluate_elements(Node n);

/// Stores evaluate_elements() as the contents of the output, in addition to the result of ONNX's
/// propagation.
void propagate_contents(Node n);

/// The output as a tensor, when every element is a number.
std::optional<Tensor> known_result(Node n);

/// Rules for OpDef::elements. `same`: for operators that only change the shape or dtype of their
/// input.
namespace elements {

using Inputs = std::vector<std::optional<Elements>>;
using Result = std::optional<Elements>;

Result add(Node n, const Inputs& in);
Result sub(Node n, const Inputs& in);
Result mul(Node n, const Inputs& in);
Result div(Node n, const Inputs& in);
Result mod(Node n, const Inputs& in);
Result min(Node n, const Inputs& in);
Result max(Node n, const Inputs& in);
Result negate(Node n, const Inputs& in);
Result equal(Node n, const Inputs& in);
Result less(Node n, const Inputs& in);
Result greater(Node n, const Inputs& in);
Result logical_and(Node n, const Inputs& in);
Result logical_or(Node n, const Inputs& in);
Result logical_not(Node n, const Inputs& in);
Result where(Node n, const Inputs& in);
Result reduce_sum(Node n, const Inputs& in);
Result reduce_prod(Node n, const Inputs& in);
Result reduce_min(Node n, const Inputs& in);
Result reduce_max(Node n, const Inputs& in);
Result same(Node n, const Inputs& in);
Result shape(Node n, const Inputs& in);
Result size(Node n, const Inputs& in);
Result concat(Node n, const Inputs& in);
Result gather(Node n, const Inputs& in);
Result slice(Node n, const Inputs& in);
Result constant_of_shape(Node n, const Inputs& in);
Result expand(Node n, const Inputs& in);
Result range(Node n, const Inputs& in);

}  // namespace elements

}  // namespace steep
