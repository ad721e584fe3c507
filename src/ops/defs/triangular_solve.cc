// x = op(a)⁻¹ b for triangular matrices a; only one triangle is read. Leading axes broadcast.
#include "ops/defs/matrices.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

std::vector<Type> triangular_solve_infer(Node n) {
  require_operands(n, 2, 1);
  for (const char* name : {"upper", "transpose", "unit"}) integer_of(n, name);
  return {solution_of(n, 0, 1)};
}

/// db = op(a)⁻ᵀ dx and da = -db xᵀ (with `transpose`, its transpose), restricted to the triangle
/// that is read.
Grads triangular_solve_vjp(Node n, const Grads& dy) {
  const Value a = n.input(0), x = n.output(0);
  const bool transposed = integer_of(n, "transpose") != 0, unit = integer_of(n, "unit") != 0;
  const bool upper = integer_of(n, "upper") != 0;
  Attrs other_way = n.attrs();
  other_way.set("transpose", int64_t{!transposed});
  const Value db = apply("steep.TriangularSolve", {a, dy[0]}, other_way);
  const Value product = transposed ? matmul(x, swap_last(db)) : matmul(db, swap_last(x));
  const int64_t first = unit ? (upper ? 1 : -1) : 0;
  const Value diagonal = scalar(a.graph(), static_cast<double>(first), DType::i64);
  return {-apply("Trilu", {product, diagonal}, {{"upper", int64_t{upper}}}), db};
}

}  // namespace

/// steep.TriangularSolve(a, b): a [.., n, n], b [.., n, k] → x [.., n, k]. `upper`: the upper
/// triangle of a is read, else the lower; `transpose`: op(a) is aᵀ; `unit`: the diagonal is not
/// read and counts as ones. A zero on the diagonal is a division by zero.
extern const OpDef kSteepTriangularSolve = {
    .name = "steep.TriangularSolve",
    .in_files = true,
    .attributes = {{"upper", 0}, {"transpose", 0}, {"unit", 0}},
    .vjp = triangular_solve_vjp,
    .infer = triangular_solve_infer};

}  // namespace steep
