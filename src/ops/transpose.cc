// y = x with its axes in the order `perm` (absent: reversed)
#include "ops/build.h"

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

Value transpose_simplify(Node n) {
  const Ints perm = n.attrs().ints("perm");
  for (size_t i = 0; i < perm.size(); ++i) {
    if (perm[i] != static_cast<int64_t>(i)) return {};
  }
  return perm.empty() ? Value() : n.input(0);
}

}  // namespace

extern const OpDef kTranspose = {
    .name = "Transpose", .vjp = transpose_vjp, .simplify = transpose_simplify};

}  // namespace steep
