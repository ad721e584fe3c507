// Keeps what the forward pass of a recurrent layer computes on the way, for its gradient, which
// would otherwise run the layer again:
//
//   y, h, c = LSTM(x, …)                          y, h, c, t = steep.RecurrentWithTrace(x, …)
//   dx, … = steep.RecurrentGrad(dy, …, x, …)   →  dx, … = steep.RecurrentGrad(dy, …, x, …, t)
//
// The trace has seven times the elements of the states of an LSTM, five of a GRU. A quarter of the
// step's products is saved. With a limit of memory, the planner may still compute the trace again.
#include "ir/comparison_key.h"
#include "ir/readers.h"
#include "ops/build.h"
#include "passes/pipeline.h"

namespace steep {
namespace {

constexpr int kOperands = 8;   // x, w, r, b, lens, h0, c0, p
constexpr int kGradients = 3;  // of y, h and c, before the operands of steep.RecurrentGrad

/// The attributes of the gradient of a layer, and of the layer with a trace.
Attrs attrs_with_cell(Node layer) {
  Attrs attrs = layer.attrs();
  attrs.set("cell", layer.op());
  return attrs;
}

/// Whether `gradient` is that of `layer`.
bool belongs(Node layer, Node gradient) {
  if (layer.op() != gradient.attrs().string("cell")) return false;
  for (int i = 0; i < kOperands; ++i) {
    if (layer.input(i) != gradient.input(kGradients + i)) return false;
  }
  const auto key = comparison_key(attrs_with_cell(layer));
  return key && key == comparison_key(gradient.attrs());
}

/// Replaces the layer by one with a trace, and returns the trace.
Value keep_trace_of(Node layer) {
  Graph& g = layer.graph();
  std::vector<Value> operands;
  for (int i = 0; i < kOperands; ++i) operands.push_back(layer.input(i));
  const Graph::Scope scope(g, layer.phase(), layer.name());
  const auto results =
      apply_n("steep.RecurrentWithTrace", operands, kGradients + 1, attrs_with_cell(layer));
  g.place_like(results[0].producer(), layer);
  for (int i = 0; i < layer.output_count(); ++i) {
    if (layer.output(i)) g.replace_uses(layer.output(i), results[static_cast<size_t>(i)]);
  }
  g.erase(layer);
  return results.back();
}

/// Replaces the gradient by one that reads the trace.
void read_trace(Node gradient, Value trace) {
  Graph& g = gradient.graph();
  std::vector<Value> operands;
  for (int i = 0; i < kGradients + kOperands; ++i) operands.push_back(gradient.input(i));
  operands.push_back(trace);
  const Graph::Scope scope(g, gradient.phase(), gradient.name());
  const auto results =
      apply_n("steep.RecurrentGrad", operands, gradient.output_count(), gradient.attrs());
  g.place_like(results[0].producer(), gradient);
  for (int i = 0; i < gradient.output_count(); ++i) {
    if (gradient.output(i)) g.replace_uses(gradient.output(i), results[static_cast<size_t>(i)]);
  }
  g.erase(gradient);
}

bool keep(const Match& m) {
  const Node gradient = m.node("gradient");
  const Value x = gradient.input(kGradients);
  const DType dtype = x.dtype();
  if (gradient.input(kGradients + kOperands)) return false;  // it reads a trace
  if (dtype != DType::f32 && dtype != DType::f64) return false;
  const Readers readers(gradient.graph());  // anew, since the last match replaced nodes
  for (Node layer : readers.of(x)) {
    if (!belongs(layer, gradient)) continue;
    read_trace(gradient, keep_trace_of(layer));
    return true;
  }
  return false;
}

constexpr PatternRule<> kRules[] = {
    {.name = "keep_trace/recurrent",
     .reason = "Forward has computed the gates and states that the gradient would compute again.",
     .pattern = "gradient: steep.RecurrentGrad(...)",
     .then = keep}};

}  // namespace

void keep_trace(Graph& g, const Devices& devices) {
  if (!devices.only_host()) return;  // other providers know the operators of the files alone
  for (Node n : g.nodes()) apply_rules(kRules, n, Match());
}

std::vector<PatternRuleInfo> keep_trace_patterns() { return list_rules(kRules); }

}  // namespace steep
