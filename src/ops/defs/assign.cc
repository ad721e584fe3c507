// steep.Assign(state, value) → value, in place of the state. Forward computes the value of a
// buffer; the state is written together with the weights, so that a step that is cancelled leaves
// it unchanged.
#include "ops/build.h"
#include "ops/op_def.h"

namespace steep {
namespace {

std::vector<Type> assign_infer(Node n) { return {n.input(0).type()}; }

std::vector<Value> assign_decompose(Node n) { return {apply("Identity", {n.input(1)})}; }

}  // namespace

extern const OpDef kSteepAssign = {.name = "steep.Assign",
                                   .infer = assign_infer,
                                   .decompose = assign_decompose,
                                   .updates_input = {0}};

}  // namespace steep
