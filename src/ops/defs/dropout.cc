// steep.Dropout(x, seed){ratio, stream}: yᵢ = keep(i) ? xᵢ / (1 - ratio) : 0. Srivastava et al.
// 2014. keep(i) comes from Philox4x32-10 (Salmon et al. 2011) at (seed, run, stream, i): the
// gradient draws the same mask.
#include "ops/defs/dropout.h"

#include "ops/build.h"

namespace steep {
namespace {

Grads dropout_vjp(Node n, const Grads& dy) {
  return {apply("steep.Dropout", {dy[0], n.input(1)}, n.attrs())};
}

std::vector<Type> dropout_infer(Node n) { return {n.input(0).type()}; }

std::vector<Value> dropout_decompose(Node n) {
  Value keep = apply("steep.DropoutMask", {n.input(0), n.input(1)}, n.attrs());
  return {where(keep, n.input(0) / (1.0 - real_of(n, "ratio")), 0)};
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
/// keep itself, for models that read Dropout's second output.
extern const OpDef kSteepDropoutMask = {.name = "steep.DropoutMask",
                                        .attributes = {kRatio, kStream},
                                        .stops_gradient = true,
                                        .dataless = true,
                                        .seed = 1,
                                        .infer = dropout_mask_infer};

}  // namespace steep
