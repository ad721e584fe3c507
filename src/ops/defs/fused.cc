// steep.Fused(inputs…){body} → outputs…: elementwise nodes run as one loop. `body` is a Graph; its
// nodes share one output shape, to which the inputs broadcast. Made by a fusion pass.
#include "ops/build.h"
#include "ops/steep_types.h"
#include "ops/unfold.h"

namespace steep {
namespace {

/// The seed of a dropout is not broadcast to the shape of the loop.
bool is_seed(const Graph& body, int input) {
  const Value v = body.inputs()[static_cast<size_t>(input)];
  for (Node n : body.nodes()) {
    const OpDef* def = find_op(n.op());
    if (def != nullptr && def->seed >= 0 && n.input(def->seed) == v) return true;
  }
  return false;
}

std::vector<Type> fused_infer(Node n) {
  const Graph& body = n.attrs().body("body");
  std::optional<Shape> common = Shape{};
  for (int i = 0; i < n.input_count(); ++i) {
    if (is_seed(body, i)) continue;
    const auto& shape = shape_if_known(n.input(i));
    if (!shape) common.reset();
    if (common) common = broadcast(n, *common, *shape);
  }
  std::vector<Type> types;
  for (const Output& y : body.outputs()) types.push_back({y.value.dtype(), common});
  return types;
}

std::vector<Value> fused_decompose(Node n) {
  std::vector<Value> operands;
  for (int i = 0; i < n.input_count(); ++i) operands.push_back(n.input(i));
  return unfold(n.attrs().body("body"), operands, n.graph());
}

/// steep.Claimed(inputs…){name, body} → outputs…: nodes that a provider computes with one kernel of
/// that name. Made by the pass `claim`. Its types are those of the replaced nodes.
std::vector<Type> claimed_infer(Node n) {
  std::vector<Type> types;
  for (const Output& y : n.attrs().body("body").outputs()) types.push_back(y.value.type());
  return types;
}

}  // namespace

extern const OpDef kSteepClaimed = {.name = "steep.Claimed",
                                    .kernel_attribute = "name",
                                    .infer = claimed_infer,
                                    .decompose = fused_decompose};

extern const OpDef kSteepFused = {
    .name = "steep.Fused", .infer = fused_infer, .decompose = fused_decompose};

}  // namespace steep
