// What is made for a state alone is written there without a copy:
//
//   update s = steep.Assign(s, v)  →  update s = v
//
// for v of an elementwise node of the same phase that nobody else reads. Such a node may write over
// the state; what is a view, or made before the caller has looked at the loss, stays assigned.
// Last, since other passes may put another value in v's place.
#include "ops/op_def.h"
#include "passes/pipeline.h"

namespace steep {
namespace {

bool computes(Node n) {
  const OpDef* def = find_op(n.op());
  return n.op() == "steep.Fused" || (def != nullptr && def->elementwise && !def->view);
}

bool reads(Node n, Value v) {
  for (int i = 0; i < n.input_count(); ++i) {
    if (n.input(i) == v) return true;
  }
  return false;
}

}  // namespace

void write_through(Graph& g) {
  const auto users = g.users();
  std::vector<Update> updates = g.updates();
  for (Update& u : updates) {
    const Node assign = u.value.producer();
    if (!assign || assign.op() != "steep.Assign" || assign.input(0) != u.state) continue;
    const Value v = assign.input(1);
    const Node maker = v.producer();
    if (!maker || maker.phase() != assign.phase() || !computes(maker) || !reads(maker, u.state)) {
      continue;
    }
    if (users[v.id()].size() != 1 || g.is_output(v) || v.dtype() != u.state.dtype() ||
        !provably_equal(v.shape(), u.state.shape())) {
      continue;
    }
    u.value = v;
  }
  g.set_updates(std::move(updates));
}

}  // namespace steep
