// The lower factor l of symmetric positive-definite matrices, a = l lᵀ, and linear systems with it.
// Only the lower triangle of a is read; the gradient is that of a symmetric matrix, as in PyTorch.
#include "ops/defs/matrices.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

std::vector<Type> cholesky_infer(Node n) {
  require_operands(n, 1, 2);
  integer_of(n, "check");
  const Type type = squares_in(n, 0);
  return {type, stack_of(type, 2, DType::i32)};
}

/// da = l⁻ᵀ s l⁻¹, with s symmetric: its lower triangle is that of lᵀ dl with half the diagonal.
Grads cholesky_vjp(Node n, const Grads& dy) {
  if (!dy[0]) return {};
  const Value l = n.output(0);
  Graph& g = l.graph();
  auto lower = [&](Value x, double diagonal) {
    return apply("Trilu", {x, scalar(g, diagonal, DType::i64)}, {{"upper", int64_t{0}}});
  };
  auto solve = [&](Value b) {
    return apply("steep.TriangularSolve", {l, b}, {{"transpose", int64_t{1}}});
  };
  const Value product = matmul(swap_last(l), dy[0]);
  const Value s = 0.5 * (lower(product, 0) + swap_last(lower(product, -1)));
  return {solve(swap_last(solve(s)))};
}

std::vector<Type> cholesky_solve_infer(Node n) {
  require_operands(n, 2, 1);
  integer_of(n, "upper");
  return {solution_of(n, 0, 1)};
}

/// db = a⁻¹ dx for a = l lᵀ, and dl = -(db xᵀ + x dbᵀ) l. This treats l as a full matrix, as
/// PyTorch does, so it is not the gradient of two triangular systems. For the upper factor u, a =
/// uᵀ u, u is on the left.
Grads cholesky_solve_vjp(Node n, const Grads& dy) {
  const Value l = n.input(0), x = n.output(0);
  const Value db = apply("steep.CholeskySolve", {l, dy[0]}, n.attrs());
  const Value product = matmul(db, swap_last(x));
  const Value both = product + swap_last(product);
  return {-(integer_of(n, "upper") != 0 ? matmul(l, both) : matmul(both, l)), db};
}

}  // namespace

/// steep.Cholesky(a): a [.., n, n] → l [.., n, n], info [..] (int32): the order of the first
/// leading minor that is not positive, or 0. With `check` a matrix with info > 0 is a DataError;
/// without it the l of such a matrix is incomplete.
extern const OpDef kSteepCholesky = {.name = "steep.Cholesky",
                                     .in_files = true,
                                     .attributes = {{"check", 1}},
                                     .vjp = cholesky_vjp,
                                     .infer = cholesky_infer};

/// steep.CholeskySolve(l, b): x in l lᵀ x = b; only one triangle of l [.., n, n] is read. With
/// `upper`: x in lᵀ l x = b. b [.., n, k] → x [.., n, k]. Leading axes broadcast.
extern const OpDef kSteepCholeskySolve = {.name = "steep.CholeskySolve",
                                          .in_files = true,
                                          .attributes = {{"upper", 0}},
                                          .vjp = cholesky_solve_vjp,
                                          .infer = cholesky_solve_infer};

}  // namespace steep
