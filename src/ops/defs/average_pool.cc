// AveragePool(x[N, C, ...]) → y and steep.AveragePoolGrad(dy, shape) → dx: means over windows
#include "ops/build.h"
#include "ops/defs/pool.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

Grads average_pool_vjp(Node n, const Grads& dy) {
  return {apply("steep.AveragePoolGrad", {dy[0], shape_of(n.input(0))}, n.attrs())};
}

Grads average_pool_grad_vjp(Node n, const Grads& dy) {
  return {apply("AveragePool", {dy[0]}, n.attrs())};
}

std::vector<Type> average_pool_grad_infer(Node n) {
  return {{n.input(0).dtype(), shape_in(n.input(1))}};
}

/// The element count of each mean follows from the sum and the mean over a tensor of ones.
std::vector<Value> average_pool_grad_in_parts(Node n) {
  const Value dy = n.input(0), shape = n.input(1);
  const Value ones = apply("Expand", {scalar(n.graph(), 1, dy.dtype()), shape});
  Attrs attrs = n.attrs();
  attrs.erase("count_include_pad");
  const Value sums = apply("steep.SumPool", {ones}, attrs);
  const Value share = apply("AveragePool", {ones}, n.attrs()) /
                      apply("Max", {sums, scalar(n.graph(), 1, dy.dtype())});
  return {apply("steep.SumPoolGrad", {dy * share, shape}, attrs)};
}

}  // namespace

extern const OpDef kAveragePool = {.name = "AveragePool",
                                   .attributes = kMeanPoolAttributes,
                                   .ranks = "2+",
                                   .vjp = average_pool_vjp};
extern const OpDef kSteepAveragePoolGrad = {.name = "steep.AveragePoolGrad",
                                            .attributes = kMeanPoolAttributes,
                                            .vjp = average_pool_grad_vjp,
                                            .infer = average_pool_grad_infer,
                                            .export_decomposition = average_pool_grad_in_parts};

}  // namespace steep
