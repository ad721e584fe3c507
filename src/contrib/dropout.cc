// Dropout and softmax with a bias added before, and a residual added after.
#include <fmt/format.h>

#include "contrib/contrib.h"

namespace steep {
namespace {

/// Adds "dropped" and "mask", the dropout of `x`. Ratio and mode are the inputs `ratio` and `ratio`
/// + 1.
void add_dropout(const ContribCall& c, ContribBody& f, const std::string& x, size_t ratio) {
  f.add(fmt::format("dropped, mask = Dropout ({}, {}, {})", x, c.has(ratio) ? "ratio" : "",
                    c.has(ratio + 1) ? "training_mode" : ""));
}

Results add_bias_dropout(const ContribCall& c, ContribBody& f) {
  f.add("total = Add (data, bias)");
  add_dropout(c, f, "total", 3);
  if (!c.has(2)) return {"dropped", "mask"};
  f.add("y = Add (dropped, residual)");
  return {"y", "mask"};
}

/// Throws ModelError when a node reads the mask, whose bits are packed.
void refuse_bits(const ContribCall& c) {
  if (!c.wants(1)) return;
  c.fail("An output is not supported.", "that output 1, a mask of packed bits, is not read",
         "a reader", "Export the model with Dropout.");
}

Results bias_dropout(const ContribCall& c, ContribBody& f) { return add_bias_dropout(c, f); }

Results bitmask_bias_dropout(const ContribCall& c, ContribBody& f) {
  refuse_bits(c);
  return {add_bias_dropout(c, f)[0], ""};
}

Results bitmask_dropout(const ContribCall& c, ContribBody& f) {
  refuse_bits(c);
  add_dropout(c, f, "data", 1);
  return {"dropped", ""};
}

// The bias is broadcast as in Add, whatever is_inner_broadcast says.
Results bias_softmax(const ContribCall& c, ContribBody& f) {
  const auto rank = static_cast<int64_t>(c.rank(0));
  const int64_t axis = c.integer("axis"), first = axis < 0 ? axis + rank : axis;
  if (first < 0 || first >= rank) {
    c.fail("An axis is out of range.", fmt::format("{} to {}", -rank, rank - 1),
           fmt::format("axis {}", axis), "Export the model again.");
  }
  if (!c.attrs.has("is_inner_broadcast")) {
    c.fail("A node lacks an attribute.", "is_inner_broadcast", "none", "Export the model again.");
  }
  c.integer("is_inner_broadcast");
  f.add("total = Add (data, bias)");
  if (first == rank - 1) {
    f.add("y = Softmax <axis = -1> (total)");
    return {"y"};
  }
  f.add(
      fmt::format("shape = Shape (total)  flat = Flatten <axis = {}> (total)"
                  "  shares = Softmax <axis = -1> (flat)"
                  "  y = Reshape <allowzero = 1> (shares, shape)",
                  first));
  return {"y"};
}

}  // namespace

// The `seed` is that of another runtime's generator; Steep draws its own random numbers.
extern const ContribOp kContribBiasDropout = {
    .name = "BiasDropout",
    .inputs = {"data", "bias", "residual?", "ratio?", "training_mode?"},
    .outputs = 2,
    .attributes = {{"seed", 0}},
    .build = bias_dropout};
extern const ContribOp kContribBitmaskBiasDropout = {
    .name = "BitmaskBiasDropout",
    .inputs = {"data", "bias", "residual?", "ratio?", "training_mode?"},
    .outputs = 2,
    .attributes = {{"seed", 0}},
    .build = bitmask_bias_dropout};
extern const ContribOp kContribBitmaskDropout = {.name = "BitmaskDropout",
                                                 .inputs = {"data", "ratio?", "training_mode?"},
                                                 .outputs = 2,
                                                 .attributes = {{"seed", 0}},
                                                 .build = bitmask_dropout};
extern const ContribOp kContribBiasSoftmax = {
    .name = "BiasSoftmax",
    .inputs = {"data", "bias"},
    .attributes = {{"axis", 1}, {"is_inner_broadcast", 0}},
    .build = bias_softmax};

}  // namespace steep
