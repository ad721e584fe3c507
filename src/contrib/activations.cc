// Convolutions and products with the activation that follows them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "contrib/contrib.h"

namespace steep {
namespace {

constexpr const char* kTrainTheOriginal =
    "Train the file from before another runtime optimised it.";

[[noreturn]] void refuse_activation(const ContribCall& c, const char* known) {
  c.fail("An activation is not known.", known, c.text("activation").substr(0, 40),
         kTrainTheOriginal);
}

/// y = the activation `kind` of `x`.
void add_activation(ContribBody& f, const std::string& kind, const std::string& x) {
  f.add(fmt::format("y = {} ({})", kind.empty() ? "Identity" : kind, x));
}

Floats floats(const ContribCall& c, std::string_view name) {
  const Attr* attr = c.attrs.find(name);
  if (attr == nullptr) return {};
  if (const auto* values = std::get_if<Floats>(attr)) return *values;
  c.fail("An attribute has another type.", fmt::format("{}, a list of floats", name), "another",
         "Export the model again.");
}

// act(Conv(X, W, B) + Z)
Results fused_conv(const ContribCall& c, ContribBody& f) {
  std::string attributes = fmt::format("group = {}", c.integer("group"));
  const std::string pad = c.text("auto_pad");
  if (pad != "NOTSET" && pad != "SAME_UPPER" && pad != "SAME_LOWER" && pad != "VALID") {
    c.fail("An attribute has a value that the operator does not know.",
           "auto_pad NOTSET, SAME_UPPER, SAME_LOWER or VALID", pad.substr(0, 40),
           "Export the model again.");
  }
  attributes += fmt::format(", auto_pad = \"{}\"", pad);
  for (const char* name : {"dilations", "kernel_shape", "pads", "strides"}) {
    const Ints values = c.attrs.ints(name);
    if (!values.empty()) attributes += fmt::format(", {} = [{}]", name, fmt::join(values, ", "));
  }
  f.add(fmt::format("conv = Conv <{}> (X, W{})", attributes, c.has(2) ? ", B" : ""));
  if (c.has(3)) f.add("total = Add (conv, Z)");
  const std::string x = c.has(3) ? "total" : "conv", kind = c.text("activation");
  const Floats p = floats(c, "activation_params");
  const bool two = kind == "Clip" || kind == "HardSigmoid";
  const size_t count = two ? 2 : kind == "LeakyRelu" ? 1 : 0;
  if (p.size() < count) {
    c.fail("An activation lacks a parameter.", fmt::format("{} for {}", count, kind),
           fmt::format("{}", p.size()), "Export the model again.");
  }
  if (kind == "Clip") {
    f.scalar("least", p[0], x);
    f.scalar("most", p[1], x);
    f.add(fmt::format("y = Clip ({}, least, most)", x));
  } else if (kind == "Silu") {
    f.add(fmt::format("share = Sigmoid ({0})  y = Mul ({0}, share)", x));
  } else if (kind.empty() || kind == "Relu" || kind == "Tanh" || kind == "Sigmoid" || count > 0) {
    add_activation(f, kind, x);
    if (count > 0) f.real("alpha", p[0]);
    if (count > 1) f.real("beta", p[1]);
  } else {
    refuse_activation(c, "Relu, Tanh, Sigmoid, LeakyRelu, Clip, HardSigmoid or Silu");
  }
  return {"y"};
}

Results fused_gemm(const ContribCall& c, ContribBody& f) {
  f.add(fmt::format("gemm = Gemm <transA = {}, transB = {}> (A, B{})", c.integer("transA"),
                    c.integer("transB"), c.has(2) ? ", C" : ""));
  f.real("alpha", c.real("alpha"));
  f.real("beta", c.real("beta"));
  constexpr std::string_view kKnown[] = {"",         "Elu",  "HardSigmoid",    "LeakyRelu",
                                         "Relu",     "Selu", "Sigmoid",        "Softplus",
                                         "Softsign", "Tanh", "ThresholdedRelu"};
  const std::string kind = c.text("activation");
  if (std::find(std::begin(kKnown), std::end(kKnown), kind) == std::end(kKnown)) {
    refuse_activation(c, "an activation of ONNX that has no other inputs");
  }
  add_activation(f, kind, "gemm");
  for (const char* name : {"alpha", "beta", "gamma"}) {
    const std::string full = fmt::format("activation_{}", name);
    if (c.attrs.has(full)) f.real(name, c.real(full));
  }
  return {"y"};
}

}  // namespace

extern const ContribOp kContribFusedConv = {
    .name = "FusedConv",
    .inputs = {"X", "W", "B?", "Z?"},
    .attributes = {{"activation", ""}, {"auto_pad", "NOTSET"}, {"group", 1}},
    .lists = {"activation_params", "dilations", "kernel_shape", "pads", "strides"},
    .build = fused_conv};
extern const ContribOp kContribFusedGemm = {.name = "FusedGemm",
                                            .inputs = {"A", "B", "C?"},
                                            .attributes = {{"activation", ""},
                                                           {"activation_alpha", 0.0},
                                                           {"activation_beta", 0.0},
                                                           {"activation_gamma", 0.0},
                                                           {"alpha", 1.0},
                                                           {"beta", 1.0},
                                                           {"transA", 0},
                                                           {"transB", 0}},
                                            .build = fused_gemm};

}  // namespace steep
