// Systems of linear equations by LU decomposition with partial pivoting, and the logarithm of
// determinants from the same decomposition. Backward shares the decomposition.
#include "ops/defs/matrices.h"
#include "ops/steep_types.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Returns lu, pivots and info of square matrices.
std::vector<Value> decompose_lu(Value a, int64_t check) {
  return apply_n("steep.LU", std::vector<Value>{a}, 3, {{"check", check}});
}

Value solve_with(Value a, Value lu, Value pivots, Value b, bool transpose) {
  return apply("steep.LUSolve", {a, lu, pivots, b}, {{"transpose", int64_t{transpose}}});
}

/// The types of sign and logarithm, with one element per matrix.
std::vector<Type> logarithm_of(const Type& squares) {
  return std::vector<Type>(2, stack_of(squares, 2, squares.dtype));
}

// --- steep.LU ------------------------------------------------------------------------------------

std::vector<Type> lu_infer(Node n) {
  require_operands(n, 1, 3);
  integer_of(n, "check");
  const Type type = squares_in(n, 0);
  return {type, stack_of(type, 1, DType::i64), stack_of(type, 2, DType::i32)};
}

/// Throws ShapeError unless inputs 0 to 2 are matrices, their LU decomposition and its pivots.
void require_decomposed(Node n, int inputs) {
  require_operands(n, inputs, inputs == 3 ? 2 : 1);
  const Type a = squares_in(n, 0), lu = squares_in(n, 1);
  const Value pivots = n.input(2);
  if (a.dtype == lu.dtype && pivots && pivots.type().kind == Kind::tensor &&
      pivots.dtype() == DType::i64)
    return;
  throw_shape_error(n, "The types of a matrix decomposition are wrong.",
                    to_string(a) + ", and int64 pivots",
                    to_string(lu) + (pivots ? ", " + to_string(pivots.type()) : ""));
}

/// A decomposition has no gradient itself: the ops that read it are differentiated with respect to
/// the matrices.
Grads lu_vjp(Node n, const Grads&) {
  throw ModelError({.what = "A matrix decomposition has no gradient.",
                    .node = n.name(),
                    .op = n.op(),
                    .expected = "that only steep.LUSolve and steep.LUSlogDet read it",
                    .remedy = "Use steep.Solve or steep.SlogDet."});
}

// --- steep.LUSolve -------------------------------------------------------------------------------

std::vector<Type> lu_solve_infer(Node n) {
  require_decomposed(n, 4);
  integer_of(n, "transpose");
  return {solution_of(n, 0, 3)};
}

/// db = op(a)⁻ᵀ dx and da = -db xᵀ; with `transpose`, da is transposed.
Grads lu_solve_vjp(Node n, const Grads& dy) {
  const bool transposed = integer_of(n, "transpose") != 0;
  const Value x = n.output(0);
  const Value db = solve_with(n.input(0), n.input(1), n.input(2), dy[0], !transposed);
  const Value product = transposed ? matmul(x, swap_last(db)) : matmul(db, swap_last(x));
  return {-product, {}, {}, db};
}

// --- steep.LUSlogDet -----------------------------------------------------------------------------

std::vector<Type> lu_slog_det_infer(Node n) {
  require_decomposed(n, 3);
  return logarithm_of(squares_in(n, 0));
}

/// The derivative of log |det a| is a⁻ᵀ; the sign has none.
Grads lu_slog_det_vjp(Node n, const Grads& dy) {
  if (!dy[1]) return {};
  const Value a = n.input(0);
  // Solve with a itself, not with its transpose. For singular matrices this determines which slopes
  // are infinite.
  const Value inverse = solve_with(a, n.input(1), n.input(2), identity_for(a), false);
  return {unsqueeze(dy[1], {-2, -1}) * swap_last(inverse)};
}

// --- operators in captures -----------------------------------------------------------------------

std::vector<Type> solve_infer(Node n) {
  require_operands(n, 2, 2);
  integer_of(n, "check");
  return {solution_of(n, 0, 1), stack_of(squares_in(n, 0), 2, DType::i32)};
}

std::vector<Value> solve_decompose(Node n) {
  const Value a = n.input(0);
  const std::vector<Value> lu = decompose_lu(a, integer_of(n, "check"));
  return {solve_with(a, lu[0], lu[1], n.input(1), false), lu[2]};
}

std::vector<Type> slog_det_infer(Node n) {
  require_operands(n, 1, 2);
  integer_of(n, "check");
  return logarithm_of(squares_in(n, 0));
}

std::vector<Value> slog_det_decompose(Node n) {
  const Value a = n.input(0);
  const std::vector<Value> lu = decompose_lu(a, integer_of(n, "check"));
  return apply_n("steep.LUSlogDet", std::vector<Value>{a, lu[0], lu[1]}, 2);
}

}  // namespace

/// steep.LU(a): a [.., n, n] → lu [.., n, n], pivots [.., n] (int64), info [..] (int32). lu holds
/// both factors of a with swapped rows: row i with row pivots[i], for i in ascending order. `info`:
/// the first pivot that is zero, counted from 1, or 0; with `check` a zero pivot is a DataError.
/// Only the two operators below may read the results; they are differentiated with respect to a.
extern const OpDef kSteepLU = {.name = "steep.LU",
                               .in_files = true,
                               .attributes = {{"check", 1}},
                               .vjp = lu_vjp,
                               .infer = lu_infer};

/// steep.LUSolve(a, lu, pivots, b): x in op(a) x = b by the decomposition of a; a itself is not
/// read. `transpose`: op(a) is aᵀ. Leading axes broadcast.
extern const OpDef kSteepLUSolve = {.name = "steep.LUSolve",
                                    .in_files = true,
                                    .attributes = {{"transpose", 0}},
                                    .vjp = lu_solve_vjp,
                                    .infer = lu_solve_infer};

/// steep.LUSlogDet(a, lu, pivots): sign [..] and logarithm [..] of |det a|; 0 and -inf for singular
/// matrices.
extern const OpDef kSteepLUSlogDet = {.name = "steep.LUSlogDet",
                                      .in_files = true,
                                      .vjp = lu_slog_det_vjp,
                                      .infer = lu_slog_det_infer};

/// steep.Solve(a, b): a [.., n, n], b [.., n, k] → x [.., n, k] in a x = b; info [..] as in
/// steep.LU.
extern const OpDef kSteepSolve = {.name = "steep.Solve",
                                  .in_files = true,
                                  .attributes = {{"check", 1}},
                                  .infer = solve_infer,
                                  .decompose = solve_decompose};

/// steep.SlogDet(a): a [.., n, n] → sign [..], log |det a| [..]. `check` as in steep.LU.
extern const OpDef kSteepSlogDet = {.name = "steep.SlogDet",
                                    .in_files = true,
                                    .attributes = {{"check", 0}},
                                    .infer = slog_det_infer,
                                    .decompose = slog_det_decompose};

}  // namespace steep
