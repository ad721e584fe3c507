// If(condition, captured…){then_branch, else_branch}: the outputs of one of two graphs. A branch
// reads only its own inputs: the node's inputs after the condition are those of then_branch, then
// those of else_branch. The gradient is an If of the branches' gradients, each of which recomputes
// what it needs of its branch.
#include "ops/build.h"

namespace steep {
namespace {

/// A body with the gradients of a branch's inputs, and zeros for the inputs of the other branch.
/// Inputs of the body: the branch's inputs, the gradients of its outputs (those that exist), the
/// other branch's inputs.
Body branch_gradient(const Graph& branch, const Grads& dy, const Graph& other, bool zeros_first,
                     Differentiate differentiate) {
  auto body = std::make_shared<Graph>(branch);
  std::vector<Value> outputs, seeds, wrt, results, zeros;
  const std::vector<Value> inputs = body->inputs();
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!dy[i]) continue;
    outputs.push_back(body->outputs()[i].value);
    seeds.push_back(body->add_input("dy", outputs.back().type()));
  }
  body->set_outputs({});
  for (Value v : inputs) {
    if (is_float(v.dtype())) wrt.push_back(v);
  }
  const std::vector<Value> gradients = differentiate(*body, outputs, seeds, wrt, Phase::forward);
  for (size_t i = 0; i < wrt.size(); ++i)
    results.push_back(gradients[i] ? gradients[i] : zeros_like(wrt[i]));
  for (Value v : other.inputs()) {
    const Value copy = body->add_input(v.name(), v.type());
    if (is_float(v.dtype())) zeros.push_back(zeros_like(copy));
  }
  results.insert(zeros_first ? results.begin() : results.end(), zeros.begin(), zeros.end());
  for (Value v : results) body->add_output(v.name(), v);
  body->prune();
  return body;
}

Grads if_vjp(Node n, const Grads& dy, Differentiate differentiate) {
  const Graph& then_branch = n.attrs().body("then_branch");
  const Graph& else_branch = n.attrs().body("else_branch");
  const auto middle = 1 + static_cast<int>(then_branch.inputs().size());
  std::vector<Value> of_then, of_else, seeds, inputs{n.input(0)};
  for (int i = 1; i < n.input_count(); ++i) (i < middle ? of_then : of_else).push_back(n.input(i));
  for (Value v : dy) {
    if (v) seeds.push_back(v);
  }
  for (const auto* list : {&of_then, &seeds, &of_else, &of_else, &seeds, &of_then})
    inputs.insert(inputs.end(), list->begin(), list->end());
  std::vector<int> wrt;
  for (int i = 1; i < n.input_count(); ++i) {
    if (is_float(n.input(i).dtype())) wrt.push_back(i);
  }
  if (wrt.empty()) return {};
  const Node grad = n.graph().add_node(
      "If", inputs, static_cast<int>(wrt.size()),
      {{"then_branch", branch_gradient(then_branch, dy, else_branch, false, differentiate)},
       {"else_branch", branch_gradient(else_branch, dy, then_branch, true, differentiate)}});
  Grads dx(static_cast<size_t>(n.input_count()));
  for (size_t i = 0; i < wrt.size(); ++i) {
    const Value d = grad.output(static_cast<int>(i));
    n.graph().set_type(d, n.input(wrt[i]).type());
    dx[static_cast<size_t>(wrt[i])] = d;
  }
  return dx;
}

/// The types were set when the node was made; its bodies do not change.
std::vector<Type> if_infer(Node n) {
  std::vector<Type> types;
  for (int i = 0; i < n.output_count(); ++i) types.push_back(n.output(i).type());
  return types;
}

}  // namespace

extern const OpDef kIf = {
    .name = "If", .ranks = "e", .dynamic = true, .vjp = if_vjp, .infer = if_infer};

}  // namespace steep
