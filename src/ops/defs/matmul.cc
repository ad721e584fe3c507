// y = a b by NumPy's rules: a vector is a row on the left, a column on the right; leading axes
// broadcast.
#include "ops/build.h"

namespace steep {
namespace {

/// All leading axes joined: (.., k) becomes (rows, k).
Value rows_of(Value x) {
  return x.rank() == 2 ? x : apply("Flatten", {x}, {{"axis", x.rank() - 1}});
}

Grads matmul_vjp(Node n, const Grads& dy) {
  Value a = n.input(0), b = n.input(1), d = dy[0];
  const int64_t rank_a = a.rank(), rank_b = b.rank();
  if (rank_a == 1 && rank_b == 1) return {d * b, d * a};
  if (rank_b == 1) {  // a (.., m, k), b (k), d (.., m)
    return {unsqueeze(d, {-1}) * b, matmul(reshape(d, {-1}), rows_of(a))};
  }
  if (rank_a == 1) {  // a (k), b (.., k, n), d (.., n)
    Value row = unsqueeze(d, {-2});
    return {squeeze(matmul(row, swap_last(b)), {-2}), unsqueeze(a, {1}) * row};
  }
  Value da = matmul(d, swap_last(b));
  // When b has no batch axes, one product over all rows replaces a batch of products and their sum.
  if (rank_b == 2 && rank_a > 2) return {da, matmul(swap_last(rows_of(a)), rows_of(d))};
  return {da, matmul(swap_last(a), d)};
}

}  // namespace

extern const OpDef kMatMul = {.name = "MatMul", .ranks = "1+ 1+", .vjp = matmul_vjp};

}  // namespace steep
