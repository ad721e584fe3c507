// x Φ(x) and its approximations, some with a product or a bias before; and a bias alone.
#include <fmt/format.h>

#include "contrib/contrib.h"

namespace steep {
namespace {

Results gelu(const ContribCall& /*c*/, ContribBody& f) {
  f.add("y = Gelu (X)");
  return {"y"};
}

Results bias_gelu(const ContribCall& /*c*/, ContribBody& f) {
  f.add("s = Add (A, B)  y = Gelu (s)");
  return {"y"};
}

Results fast_gelu(const ContribCall& c, ContribBody& f) {
  if (c.has(1)) f.add("s = Add (X, bias)");
  f.add(fmt::format("y = Gelu <approximate = \"tanh\"> ({})", c.has(1) ? "s" : "X"));
  return {"y"};
}

// x σ(αx)
Results quick_gelu(const ContribCall& c, ContribBody& f) {
  f.scalar("alpha", c.real("alpha"), "X");
  f.add("a = Mul (X, alpha)  p = Sigmoid (a)  y = Mul (X, p)");
  return {"y"};
}

Results gemm_fast_gelu(const ContribCall& c, ContribBody& f) {
  f.add("p = MatMul (X, W)");
  if (c.has(2)) f.add("s = Add (p, bias)");
  f.add(fmt::format("y = Gelu <approximate = \"tanh\"> ({})", c.has(2) ? "s" : "p"));
  return {"y"};
}

// Half of the columns, multiplied with the GELU of the other half.
Results bias_split_gelu(const ContribCall& /*c*/, ContribBody& f) {
  f.add(
      "s = Add (X, bias)  left, right = Split <axis = -1, num_outputs = 2> (s)"
      "  gate = Gelu (right)  y = Mul (left, gate)");
  return {"y"};
}

Results bias_add(const ContribCall& /*c*/, ContribBody& f) {
  f.add("s = Add (X, bias)  y = Add (s, skip)");
  return {"y"};
}

}  // namespace

extern const ContribOp kContribBiasAdd = {
    .name = "BiasAdd", .inputs = {"X", "bias", "skip"}, .build = bias_add};
extern const ContribOp kContribBiasSplitGelu = {
    .name = "BiasSplitGelu", .inputs = {"X", "bias"}, .build = bias_split_gelu};
extern const ContribOp kContribGemmFastGelu = {
    .name = "GemmFastGelu", .inputs = {"X", "W", "bias?"}, .build = gemm_fast_gelu};
extern const ContribOp kContribGelu = {.name = "Gelu", .inputs = {"X"}, .build = gelu};
extern const ContribOp kContribBiasGelu = {
    .name = "BiasGelu", .inputs = {"A", "B"}, .build = bias_gelu};
extern const ContribOp kContribFastGelu = {
    .name = "FastGelu", .inputs = {"X", "bias?"}, .build = fast_gelu};
extern const ContribOp kContribQuickGelu = {
    .name = "QuickGelu", .inputs = {"X"}, .attributes = {{"alpha", 1.702F}}, .build = quick_gelu};

}  // namespace steep
