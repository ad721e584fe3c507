// steep.Dropout(x, seed){ratio, stream}: yᵢ = xᵢ (keep(i) ? 1 / (1 - ratio) : 0), NaN where xᵢ is
// NaN, as in PyTorch. Srivastava et al. 2014. keep(i) comes from Philox4x32-10 (Salmon et al. 2011)
// at (seed, run, stream, i): the gradient draws the same mask.
//
// steep.DropoutRows(x[p, k], rows[p], extents, seed){ratio, stream}: rows of steep.Dropout's result
// for an operand of shape [extents…, k]; rows are numbered as in steep.TakeRows.
#include "ops/defs/dropout.h"

#include "ops/build.h"

namespace steep {
namespace {

/// Zeros, and 1 / (1 - ratio) where `keep` is true.
Value factors(Node n, Value keep) {
  const double ratio = real_of(n, "ratio");
  return where(keep, scalar(n.graph(), ratio < 1 ? 1 / (1 - ratio) : 0, n.input(0).dtype()), 0);
}

Grads dropout_vjp(Node n, const Grads& dy) {
  return {apply("steep.Dropout", {dy[0], n.input(1)}, n.attrs())};
}

std::vector<Type> dropout_infer(Node n) { return {n.input(0).type()}; }

std::vector<Value> dropout_decompose(Node n) {
  Value keep = apply("steep.DropoutMask", {n.input(0), n.input(1)}, n.attrs());
  return {n.input(0) * factors(n, keep)};
}

Grads dropout_rows_vjp(Node n, const Grads& dy) {
  return {apply("steep.DropoutRows", {dy[0], n.input(1), n.input(2), n.input(3)}, n.attrs())};
}

/// Draws the whole mask and takes its rows: the mask of an element depends on the element's index
/// in the whole operand.
std::vector<Value> dropout_rows_decompose(Node n) {
  const Value x = n.input(0), seed = n.input(3);
  Graph& g = n.graph();
  const Value rows = apply("ReduceProd", {n.input(2)}, {{"keepdims", int64_t{1}}});
  const Value row = apply("Shape", {x}, {{"start", int64_t{1}}});
  const Tensor* number = constant(rows);
  const Dim& some = x.shape().at(0);
  if (number != nullptr && some.known() && number->to_ints().at(0) == some.value())
    return {apply("steep.Dropout", {x, seed}, n.attrs())};
  const Value like = apply("Expand", {scalar(g, 0, x.dtype()), concat({rows, row}, 0)});
  const Value mask = apply("steep.DropoutMask", {like, seed}, n.attrs());
  const Value keep = apply("steep.TakeRows", {mask, n.input(1)});
  return {x * factors(n, keep)};
}

std::vector<Type> dropout_mask_infer(Node n) { return {{DType::boolean, n.input(0).type().shape}}; }

}  // namespace

extern const OpDef kSteepDropout = {.name = "steep.Dropout",
                                    .attributes = {kRatio, kStream},
                                    .elementwise = true,
                                    .seed = 1,
                                    .vjp = dropout_vjp,
                                    .infer = dropout_infer,
                                    .decompose = dropout_decompose};
extern const OpDef kSteepDropoutRows = {.name = "steep.DropoutRows",
                                        .attributes = {kRatio, kStream},
                                        .ranks = "2 1 1",
                                        .seed = 3,
                                        .vjp = dropout_rows_vjp,
                                        .infer = dropout_infer,
                                        .decompose = dropout_rows_decompose};
/// The mask itself, for models that read Dropout's second output.
extern const OpDef kSteepDropoutMask = {.name = "steep.DropoutMask",
                                        .attributes = {kRatio, kStream},
                                        .stops_gradient = true,
                                        .dataless = true,
                                        .seed = 1,
                                        .infer = dropout_mask_infer};

}  // namespace steep
