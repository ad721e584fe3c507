// LpPool(x[N, C, ...]){p}: the p-norm of each window; GlobalLpPool: of each plane
#include "ops/build.h"
#include "ops/defs/global_pool.h"

namespace steep {
namespace {

/// |x|ᵖ
Value power(Value x, double p) {
  if (p == 2) return x * x;
  Value magnitude = apply("Abs", {x});
  return p == 1 ? magnitude : apply("Pow", {magnitude, scalar(x.graph(), p, x.dtype())});
}

Value root(Value sums, double p) {
  if (p == 2) return sqrt(sums);
  return p == 1 ? sums : apply("Pow", {sums, scalar(sums.graph(), 1 / p, sums.dtype())});
}

double p_of(Node n) { return static_cast<double>(integer_of(n, "p")); }

std::vector<Value> lp_pool_decompose(Node n) {
  const double p = p_of(n);
  return {root(apply("steep.SumPool", {power(n.input(0), p)}, n.attrs()), p)};
}

std::vector<Value> global_lp_pool_decompose(Node n) {
  Value x = n.input(0);
  Value powers = power(x, p_of(n));
  // With an empty list of axes, sum() would reduce all axes.
  return {root(x.rank() == 2 ? powers : sum(powers, spatial_axes(x), true), p_of(n))};
}

}  // namespace

extern const OpDef kLpPool = {.name = "LpPool",
                              .attributes = {{"auto_pad", "NOTSET"}, {"ceil_mode", 0}, {"p", 2}},
                              .ranks = "2+",
                              .decompose = lp_pool_decompose};
extern const OpDef kGlobalLpPool = {.name = "GlobalLpPool",
                                    .attributes = {{"p", 2}},
                                    .ranks = "2+",
                                    .decompose = global_lp_pool_decompose};

}  // namespace steep
