// α · op(A) op(B), where attributes transpose the operands.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "contrib/activations.h"

namespace steep {
namespace {

/// Transposes operand `input`. `batch` moves the first axis to the matrix's first axis, after the
/// other batch axes; then `flip` swaps the two axes of the matrix. A vector stays unchanged.
std::string oriented(const ContribCall& c, ContribBody& f, size_t input, const std::string& name,
                     bool flip, bool batch) {
  if (!flip && !batch) return name;
  const size_t rank = c.rank(input);
  if (batch && rank < 3) {
    c.fail("An input has another rank.",
           fmt::format("{} of three axes or more where transBatch{} = 1", name, name),
           to_string(c.inputs[input]), "Export the model again.");
  }
  if (rank < 2) return name;
  Ints perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  if (batch) std::rotate(perm.begin(), perm.begin() + 1, perm.end() - 1);
  if (flip) std::swap(perm[rank - 2], perm[rank - 1]);
  f.add(fmt::format("{0}_turned = Transpose <perm = [{1}]> ({0})", name, fmt::join(perm, ", ")));
  return name + "_turned";
}

Results product(const ContribCall& c, ContribBody& f, bool batch_a, bool batch_b,
                const char* y = "y") {
  const std::string a = oriented(c, f, 0, "A", c.flag("transA"), batch_a);
  const std::string b = oriented(c, f, 1, "B", c.flag("transB"), batch_b);
  f.add(fmt::format("p = MatMul ({}, {})", a, b));
  const double alpha = c.real("alpha");
  if (alpha == 1) return {"p"};
  f.scalar("alpha", alpha, "A");
  f.add(fmt::format("{} = Mul (p, alpha)", y));
  return {y};
}

Results fused_matmul(const ContribCall& c, ContribBody& f) {
  return product(c, f, c.flag("transBatchA"), c.flag("transBatchB"));
}

Results fused_matmul_activation(const ContribCall& c, ContribBody& f) {
  if (c.attrs.has("activation_axis")) {
    c.fail("An attribute is not supported.", "no activation_axis",
           fmt::format("activation_axis = {}", c.integer("activation_axis")),
           "Train the file from before another runtime optimised it.");
  }
  const std::string p = product(c, f, c.flag("transBatchA"), c.flag("transBatchB"), "product")[0];
  add_named_activation(c, f, p);
  return {"y"};
}

Results transpose_matmul(const ContribCall& c, ContribBody& f) {
  return product(c, f, false, false);
}

}  // namespace

extern const ContribOp kContribFusedMatMul = {.name = "FusedMatMul",
                                              .inputs = {"A", "B"},
                                              .attributes = {{"alpha", 1.0},
                                                             {"transA", 0},
                                                             {"transB", 0},
                                                             {"transBatchA", 0},
                                                             {"transBatchB", 0}},
                                              .build = fused_matmul};
extern const ContribOp kContribFusedMatMulActivation = {.name = "FusedMatMulActivation",
                                                        .inputs = {"A", "B"},
                                                        .attributes = {{"activation", ""},
                                                                       {"activation_alpha", 0.0},
                                                                       {"activation_axis", 0},
                                                                       {"activation_beta", 0.0},
                                                                       {"activation_gamma", 0.0},
                                                                       {"alpha", 1.0},
                                                                       {"transA", 0},
                                                                       {"transB", 0},
                                                                       {"transBatchA", 0},
                                                                       {"transBatchB", 0}},
                                                        .build = fused_matmul_activation};
extern const ContribOp kContribTransposeMatMul = {
    .name = "TransposeMatMul",
    .inputs = {"A", "B"},
    .attributes = {{"alpha", 1.0}, {"transA", 0}, {"transB", 0}},
    .build = transpose_matmul};

}  // namespace steep
