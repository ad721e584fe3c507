// Layer normalisation with a sum of two values and a bias before it; and simplified layer
// normalisation, which does not subtract the mean.
#include <fmt/format.h>

#include <numeric>

#include "contrib/contrib.h"

namespace steep {
namespace {

/// Adds "total" = input + skip + bias. A skip without a batch axis is broadcast.
void add_skip(ContribBody& f, bool bias) {
  if (!bias) return f.add("total = Add (input, skip)");
  f.add("both = Add (input, skip)  total = Add (both, bias)");
}

/// The dtype for statistics: float64 for float64 inputs, otherwise the one that the attribute asks
/// for.
int64_t stash_of(const ContribCall& c, int64_t stash_type) {
  return c.inputs[0].dtype == DType::f64 ? static_cast<int64_t>(DType::f64) : stash_type;
}

/// Adds y, x normalised along `axes`, the last axes, and `inverse`, 1 / √(mean x² + ε).
void add_simplified(const ContribCall& c, ContribBody& f, const std::string& x,
                    const std::string& scale, const Ints& axes, int64_t stash_type) {
  const int64_t stash = stash_of(c, stash_type);
  f.add(fmt::format("y = RMSNormalization <axis = {}, stash_type = {}> ({}, {})", axes.front(),
                    stash, x, scale));
  f.real("epsilon", c.real("epsilon"));
  f.ints("axes", axes);
  f.add(
      fmt::format("wide = Cast <to = {}> ({})  square = Mul (wide, wide)"
                  "  average = ReduceMean (square, axes)",
                  stash, x));
  f.scalar("epsilon", c.real("epsilon"), "wide");
  f.add("raised = Add (average, epsilon)  root = Sqrt (raised)  inverse = Reciprocal (root)");
}

/// Adds y, mean, inverse: `x` normalised along `axis` and the later axes.
void add_normalized(const ContribCall& c, ContribBody& f, int64_t axis, int64_t stash_type,
                    const std::string& operands) {
  f.add(fmt::format("y, mean, inverse = LayerNormalization <axis = {}, stash_type = {}> ({})", axis,
                    stash_of(c, stash_type), operands));
  f.real("epsilon", c.real("epsilon"));
}

constexpr auto kFloat = static_cast<int64_t>(DType::f32);

Results skip_layer_normalization(const ContribCall& c, ContribBody& f) {
  add_skip(f, c.has(4));
  add_normalized(c, f, -1, kFloat, c.has(3) ? "total, gamma, beta" : "total, gamma");
  return {"y", "mean", "inverse", "total"};
}

Results skip_simplified_layer_normalization(const ContribCall& c, ContribBody& f) {
  add_skip(f, c.has(3));
  add_simplified(c, f, "total", "gamma", {-1}, kFloat);
  return {"y", "", "inverse", "total"};
}

Results simplified_layer_normalization(const ContribCall& c, ContribBody& f) {
  const auto rank = static_cast<int64_t>(c.rank(0));
  const int64_t axis = c.integer("axis"), first = axis < 0 ? axis : axis - rank;
  if (first < -rank || first >= 0) {
    c.fail("An axis is out of range.", fmt::format("{} to {}", -rank, rank - 1),
           fmt::format("axis {}", axis), "Export the model again.");
  }
  Ints axes(static_cast<size_t>(-first));
  std::iota(axes.begin(), axes.end(), first);
  add_simplified(c, f, "X", "scale", axes, c.integer("stash_type"));
  return {"y", "inverse"};
}

// ONNX's LayerNormalization, for files with an opset that does not have it yet.
Results layer_normalization(const ContribCall& c, ContribBody& f) {
  add_normalized(c, f, c.integer("axis"), c.integer("stash_type"),
                 c.has(2) ? "X, scale, B" : "X, scale");
  return {"y", "mean", "inverse"};
}

}  // namespace

extern const ContribOp kContribSkipLayerNormalization = {
    .name = "SkipLayerNormalization",
    .inputs = {"input", "skip", "gamma", "beta?", "bias?"},
    .outputs = 4,
    .attributes = {{"epsilon", 1e-12}},
    .build = skip_layer_normalization};
extern const ContribOp kContribSkipSimplifiedLayerNormalization = {
    .name = "SkipSimplifiedLayerNormalization",
    .inputs = {"input", "skip", "gamma", "bias?"},
    .outputs = 4,
    .attributes = {{"epsilon", 1e-12}},
    .build = skip_simplified_layer_normalization};
extern const ContribOp kContribSimplifiedLayerNormalization = {
    .name = "SimplifiedLayerNormalization",
    .inputs = {"X", "scale"},
    .outputs = 2,
    .attributes = {{"axis", -1}, {"epsilon", 1e-5}, {"stash_type", 1}},
    .in_default_domain = true,
    .build = simplified_layer_normalization};
extern const ContribOp kContribLayerNormalization = {
    .name = "LayerNormalization",
    .inputs = {"X", "scale", "B?"},
    .outputs = 3,
    .attributes = {{"axis", -1}, {"epsilon", 1e-5}, {"stash_type", 1}},
    .in_default_domain = true,
    .build = layer_normalization};

}  // namespace steep
