// MaxPool(x[N, C, ...]) → y, indices? and steep.MaxPoolGrad(dy, x) → dx, which adds each element of
// dy at the first maximal element of its window.
#include "ops/build.h"
#include "ops/defs/pool.h"

namespace steep {
namespace {

Grads max_pool_vjp(Node n, const Grads& dy) {
  if (!dy[0]) return {};
  return {apply("steep.MaxPoolGrad", {dy[0], n.input(0)}, n.attrs())};
}

Grads max_pool_grad_vjp(Node n, const Grads& dy) {
  Attrs attrs = n.attrs();
  attrs.erase("storage_order");
  Value x = n.input(1);
  Value indices = apply_n("MaxPool", std::vector{x}, 2, std::move(attrs))[1];
  Value values = apply("GatherElements", {reshape(dy[0], {-1}), reshape(indices, {-1})});
  return {reshape_like(values, n.input(0)), zeros_like(x)};
}

std::vector<Type> max_pool_grad_infer(Node n) { return {n.input(1).type()}; }

std::vector<Value> max_pool_grad_in_parts(Node n) {
  const Value dy = n.input(0), x = n.input(1);
  Attrs attrs = n.attrs();
  attrs.erase("storage_order");
  const Value indices = apply_n("MaxPool", std::vector{x}, 2, std::move(attrs))[1];
  const Value zeros =
      apply("Expand", {scalar(n.graph(), 0, dy.dtype()), unsqueeze(apply("Size", {x}), {0})});
  return {reshape_like(apply("ScatterElements", {zeros, reshape(indices, {-1}), reshape(dy, {-1})},
                             {{"reduction", std::string("add")}}),
                       x)};
}

}  // namespace

extern const OpDef kMaxPool = {
    .name = "MaxPool", .attributes = kMaxPoolAttributes, .ranks = "2+", .vjp = max_pool_vjp};
extern const OpDef kSteepMaxPoolGrad = {.name = "steep.MaxPoolGrad",
                                        .attributes = kMaxPoolAttributes,
                                        .vjp = max_pool_grad_vjp,
                                        .infer = max_pool_grad_infer,
                                        .export_decomposition = max_pool_grad_in_parts};

}  // namespace steep
