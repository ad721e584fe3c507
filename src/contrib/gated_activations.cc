// Gates of language models: a gate scales a value, directly or through an activation.
#include <fmt/format.h>

#include "contrib/contrib.h"

namespace steep {
namespace {

Results gated_add(const ContribCall& c, ContribBody& f) {
  if (c.has(3)) {
    c.fail("An input is not supported.", "no such input", "gate_weight",
           "Export the model with the gate's product and Sigmoid as nodes of their own.");
  }
  f.add("scaled = Mul (Y, gate)  y = Add (X, scaled)");
  return {"y"};
}

// Normalises groups of C elements of a row, where C is the extent of scale.
Results gated_rms_norm(const ContribCall& c, ContribBody& f) {
  const std::string kind = c.text("activation");
  if (kind != "silu" && kind != "swish" && kind != "sigmoid") {
    c.fail("An activation is not known.", "silu, swish or sigmoid", kind.substr(0, 40),
           "Export the model again.");
  }
  const DType stash = c.inputs[0].dtype == DType::f64 ? DType::f64 : DType::f32;
  f.add(
      fmt::format("shape = Shape (X)  lead = Shape <end = -1> (X)  row = Shape <start = -1> (X)"
                  "  size = Shape (scale)  count = Div (row, size)"
                  "  grouped = Concat <axis = 0> (lead, count, size)"
                  "  parts = Reshape <allowzero = 1> (X, grouped)"
                  "  level = RMSNormalization <axis = -1, stash_type = {}> (parts, scale)",
                  static_cast<int64_t>(stash)));
  f.real("epsilon", c.real("epsilon"));
  f.add("flat = Reshape <allowzero = 1> (level, shape)  share = Sigmoid (gate)");
  if (kind != "sigmoid") f.add("active = Mul (gate, share)");
  f.add(fmt::format("y = Mul (flat, {})", kind == "sigmoid" ? "share" : "active"));
  return {"y"};
}

Results linear_attention_gate(const ContribCall& c, ContribBody& f) {
  if (c.wants(1) && !c.has(3)) {
    c.fail("A node lacks an input.", "input 3, b, where output 1 is read", "none",
           "Export the model again.");
  }
  for (const size_t input : {1, 2}) {
    if (c.rank(input) == 1) continue;
    c.fail("An input has another rank.", "dt_bias and decay_scale of one number a head",
           to_string(c.inputs[input]), "Export the model again.");
  }
  f.add(
      "wide = CastLike (a, dt_bias)  biased = Add (wide, dt_bias)  soft = Softplus (biased)"
      "  scaled = Mul (soft, decay_scale)  decay = CastLike (scaled, a)");
  if (c.has(3)) f.add("beta = Sigmoid (b)");
  return {"decay", c.has(3) ? "beta" : ""};
}

Results scaled_silu(const ContribCall& c, ContribBody& f) {
  if (c.has(1)) {
    f.add("factor = CastLike (scale, X)");
  } else {
    f.scalar("factor", c.real("alpha"), "X");
  }
  f.add("z = Mul (X, factor)  share = Sigmoid (z)  y = Mul (z, share)");
  return {"y"};
}

// The attribute round_activation rounds after each operator, as these operators do anyway for types
// that round.
Results swiglu(const ContribCall& c, ContribBody& f) {
  std::string g = "gate", l = "up";
  if (!c.has(1)) {
    f.add("left, right = Split <axis = -1, num_outputs = 2> (gate)");
    g = "left";
    l = "right";
  }
  if (const double limit = c.real("limit"); limit > 0) {
    f.scalar("most", limit, "gate");
    f.scalar("least", -limit, "gate");
    f.add(fmt::format("low = Min ({}, most)  within = Clip ({}, least, most)", g, l));
    g = "low";
    l = "within";
  }
  f.scalar("alpha", c.real("activation_alpha"), "gate");
  f.add(fmt::format("z = Mul ({0}, alpha)  share = Sigmoid (z)  active = Mul ({0}, share)", g));
  if (c.real("activation_beta") != 0) {
    f.scalar("beta", c.real("activation_beta"), "gate");
    f.add(fmt::format("moved = Add ({}, beta)", l));
    l = "moved";
  }
  f.add(fmt::format("y = Mul (active, {})", l));
  return {"y"};
}

}  // namespace

extern const ContribOp kContribGatedAdd = {
    .name = "GatedAdd", .inputs = {"X", "Y", "gate", "gate_weight?"}, .build = gated_add};
extern const ContribOp kContribGatedRMSNorm = {
    .name = "GatedRMSNorm",
    .inputs = {"X", "scale", "gate"},
    .attributes = {{"activation", "silu"}, {"epsilon", 1e-5F}},
    .build = gated_rms_norm};
extern const ContribOp kContribLinearAttentionGate = {
    .name = "LinearAttentionGate",
    .inputs = {"a", "dt_bias", "decay_scale", "b?"},
    .outputs = 2,
    .build = linear_attention_gate};
extern const ContribOp kContribScaledSiLU = {.name = "ScaledSiLU",
                                             .inputs = {"X", "scale?"},
                                             .attributes = {{"alpha", 1.0}},
                                             .build = scaled_silu};
extern const ContribOp kContribSwiGLU = {.name = "SwiGLU",
                                         .inputs = {"gate", "up?"},
                                         .attributes = {{"activation_alpha", 1.0},
                                                        {"activation_beta", 0.0},
                                                        {"limit", 0.0},
                                                        {"round_activation", 0}},
                                         .build = swiglu};

}  // namespace steep
