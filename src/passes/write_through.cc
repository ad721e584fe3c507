// Writes a value that is computed only for a state directly to that state, without a copy:
//
//   update s = steep.Assign(s, v)  →  update s = v
//
// The value v must come from an elementwise node of the same phase and have no other reader. Such a
// node may overwrite the state in place. A view, and a value that is computed before the caller has
// checked the loss, is still assigned. This pass is the last, because others may replace v.
#include "ops/op_def.h"
#include "passes/pipeline.h"

namespace steep {
namespace {

bool reads(Node n, Value v) {
  for (int i = 0; i < n.input_count(); ++i) {
    if (n.input(i) == v) return true;
  }
  return false;
}

constexpr PatternRule<> kMakers[] = {
    {.name = "write_through/fused",
     .reason = "A chain of elementwise nodes reads a block of a state before it writes that block.",
     .pattern = "steep.Fused(...)"}};

/// Whether the node is elementwise, so that it may overwrite an operand.
bool computes(Node n) {
  const OpDef* def = find_op(n.op());
  return (def != nullptr && def->elementwise && !def->view) ||
         apply_rules(kMakers, n, Match()) != nullptr;
}

bool write_there(const Match& m, Update& update) {
  const Value v = m["v"];
  const Node maker = m.node("v");
  if (!maker || maker.phase() != m.node("assign").phase() || !computes(maker) ||
      !reads(maker, update.state) || v.dtype() != update.state.dtype() ||
      !provably_equal(v.shape(), update.state.shape()))
    return false;
  update.value = v;
  return true;
}

constexpr PatternRule<Update&> kRules[] = {
    {.name = "write_through/assign",
     .reason = "A value that is made for a state alone needs no copy.",
     .pattern = "assign: steep.Assign(state, only v)",
     .then = write_there}};

}  // namespace

void write_through(Graph& g) {
  const Readers readers(g);
  std::vector<Update> updates = g.updates();
  for (Update& u : updates)
    apply_rules(kRules, u.value.producer(), Match(readers).with("state", u.state), u);
  g.set_updates(std::move(updates));
}

std::vector<PatternRuleInfo> write_through_patterns() { return list_rules(kRules, kMakers); }

}  // namespace steep
