#include "providers/cpu/matrices.h"

#include <fmt/ranges.h>

namespace steep::cpu {
namespace {

/// The strides, in matrices, of a shape that broadcasts to `stack`.
std::optional<Dims> strides_in(const Dims& shape, const Dims& stack) {
  const size_t own = shape.size() - 2;
  if (own > stack.size()) return std::nullopt;
  Dims strides(stack.size(), 0);
  int64_t next = 1;
  for (size_t i = own; i-- > 0;) {
    const size_t axis = stack.size() - own + i;
    if (shape[i] != 1 && shape[i] != stack[axis]) return std::nullopt;
    if (shape[i] != 1) strides[axis] = next;
    next *= shape[i];
  }
  return strides;
}

}  // namespace

std::optional<Systems> Systems::of(const Dims& a, const Dims& b, const Dims& x,
                                   std::string* why_not) {
  if (a.size() < 2 || b.size() < 2 || x.size() < 2)
    return decline(why_not, "an operand has fewer than two axes"), std::nullopt;
  const int64_t n = a.back(), k = b.back();
  if (a.end()[-2] != n || b.end()[-2] != n || x.end()[-2] != n || x.back() != k)
    return decline(why_not, "the matrices do not fit"), std::nullopt;
  Dims stack(x.begin(), x.end() - 2);
  auto of_a = strides_in(a, stack), of_b = strides_in(b, stack);
  if (!of_a || !of_b) return decline(why_not, "the stacks do not broadcast"), std::nullopt;
  return Systems{std::move(stack), std::move(*of_a), std::move(*of_b), n, k, b == x};
}

std::optional<Dims> square_stack(const NodeSpec& node, std::string* why_not) {
  const Dims& dims = node.in(0).dims;
  if (dims.size() < 2 || dims.end()[-1] != dims.end()[-2])
    return decline(why_not, "the matrices are not square"), std::nullopt;
  return Dims(dims.begin(), dims.end() - 2);
}

std::string name_of_matrix(const Dims& stack, int64_t number) {
  if (stack.empty()) return "the matrix";
  Dims index(stack.size());
  for (size_t i = stack.size(); i-- > 0;) {
    index[i] = number % stack[i];
    number /= stack[i];
  }
  return fmt::format("matrix {}", index);
}

}  // namespace steep::cpu
