// steep.TakeRows(x[n, d…], rows[p]) → x[rows], and its transpose, steep.PutRows(y[p, d…], rows[p],
// shape) → zeros of `shape` with the slices of y at `rows`. REQUIRES: rows are ascending and
// distinct. Hence p = n means all rows in order, and both ops are identities.
#include "ops/simplify.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

Grads take_rows_vjp(Node n, const Grads& dy) {
  return {apply("steep.PutRows", {dy[0], n.input(1), shape_of(n.input(0))})};
}

std::vector<Type> take_rows_infer(Node n) {
  const Type& x = n.input(0).type();
  Type y{x.dtype, std::nullopt};
  if (x.shape && n.input(1).type().shape) {
    y.shape = *x.shape;
    y.shape->at(0) = n.input(1).shape().at(0);
  }
  return {std::move(y)};
}

std::vector<Value> take_rows_decompose(Node n) {
  return {apply("Gather", {n.input(0), n.input(1)}, {{"axis", int64_t{0}}})};
}

Grads put_rows_vjp(Node n, const Grads& dy) {
  return {apply("steep.TakeRows", {dy[0], n.input(1)})};
}

std::vector<Type> put_rows_infer(Node n) { return {{n.input(0).dtype(), shape_in(n.input(2))}}; }

std::vector<Value> put_rows_decompose(Node n) {
  return {apply("steep.GatherGrad", {n.input(0), n.input(1), n.input(2)}, {{"axis", int64_t{0}}})};
}

}  // namespace

extern const OpDef kSteepTakeRows = {.name = "steep.TakeRows",
                                     .ranks = "1+ 1",
                                     .vjp = take_rows_vjp,
                                     .infer = take_rows_infer,
                                     .decompose = take_rows_decompose,
                                     .simplify = input_if_same_type};

extern const OpDef kSteepPutRows = {.name = "steep.PutRows",
                                    .ranks = "1+ 1 1",
                                    .vjp = put_rows_vjp,
                                    .infer = put_rows_infer,
                                    .decompose = put_rows_decompose,
                                    .simplify = input_if_same_type};

}  // namespace steep
