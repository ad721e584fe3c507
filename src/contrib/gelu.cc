// x Φ(x) and its approximations, with a bias added first.
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

}  // namespace

extern const ContribOp kContribGelu = {.name = "Gelu", .inputs = {"X"}, .build = gelu};
extern const ContribOp kContribBiasGelu = {
    .name = "BiasGelu", .inputs = {"A", "B"}, .build = bias_gelu};
extern const ContribOp kContribFastGelu = {
    .name = "FastGelu", .inputs = {"X", "bias?"}, .build = fast_gelu};
extern const ContribOp kContribQuickGelu = {
    .name = "QuickGelu", .inputs = {"X"}, .attributes = {{"alpha", 1.702F}}, .build = quick_gelu};

}  // namespace steep
