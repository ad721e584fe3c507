// y = x with its axes in the order `perm` (absent: reversed)
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "ops/build.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

Grads transpose_vjp(Node n, const Grads& dy) {
  const Ints perm = n.attrs().ints("perm");
  if (perm.empty()) return {apply("Transpose", {dy[0]})};
  Ints inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i)
    inverse.at(static_cast<size_t>(perm[i])) = static_cast<int64_t>(i);
  return {transpose(dy[0], inverse)};
}

/// ONNX's inference accepts any list of existing axes, also with duplicates.
void check_permutation(Node n) {
  const Ints perm = n.attrs().ints("perm");
  const Type& x = n.input(0).type();
  if (perm.empty() || !x.shape) return;
  Ints axes = perm, wanted(x.shape->size());
  std::sort(axes.begin(), axes.end());
  std::iota(wanted.begin(), wanted.end(), 0);
  if (axes == wanted) return;
  throw ShapeError({.what = "The axes of a transposition do not match its operand.",
                    .node = n.name(),
                    .op = n.op(),
                    .expected = fmt::format("each of the {} once in perm",
                                            counted(wanted.size(), "axis", "axes")),
                    .received = fmt::format("[{}] for {}", fmt::join(perm, ", "), to_string(x)),
                    .remedy = "Export the model again."});
}

Value transpose_simplify(Node n) {
  const Ints perm = n.attrs().ints("perm");
  for (size_t i = 0; i < perm.size(); ++i) {
    if (perm[i] != static_cast<int64_t>(i)) return {};
  }
  return perm.empty() ? Value() : n.input(0);
}

}  // namespace

extern const OpDef kTranspose = {.name = "Transpose",
                                 .vjp = transpose_vjp,
                                 .refine = check_permutation,
                                 .simplify = transpose_simplify};

}  // namespace steep
