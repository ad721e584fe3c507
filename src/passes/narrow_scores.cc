// The cross entropy of a model of bfloat16 reads the scores as they are, and writes their gradient
// as the product reads it:
//
//   loss = SoftmaxCrossEntropy(Cast(z))       →   loss = SoftmaxCrossEntropy(z)
//   dz = Cast(SoftmaxCrossEntropyGrad(Cast(z)))  →   dz = SoftmaxCrossEntropyGrad(z)
//
// The kernels convert each number themselves, so that results have the same bits, and no float32
// copy of the scores, the largest array of a language model's step, has to exist. A part of the
// pass chunk_logits.
#include "passes/narrow_scores.h"

#include <algorithm>

#include "ops/pattern.h"

namespace steep {
namespace {

/// Whether the only use of v, which is no output, is to be cast to bfloat16.
bool becomes_bf16(Value v, const Readers& readers) {
  if (v.graph().is_output(v) || readers.of(v).empty()) return false;
  return std::all_of(readers.of(v).begin(), readers.of(v).end(),
                     [](Node n) { return n.op() == "Cast" && n.output(0).dtype() == DType::bf16; });
}

bool narrow(const Match& m, const Readers& readers) {
  Node loss = m.node("loss");
  const Value wide = m["wide"], scores = m["scores"];
  Graph& g = loss.graph();
  if (scores.dtype() != DType::bf16 || wide.dtype() != DType::f32 || g.is_output(wide))
    return false;
  std::vector<Node> gradients;
  for (Node n : readers.of(wide)) {
    if (n == loss) continue;
    const bool fits = n.op() == "steep.SoftmaxCrossEntropyGrad" && n.input(1) == wide &&
                      becomes_bf16(n.output(0), readers);
    if (!fits) return false;
    gradients.push_back(n);
  }
  loss.set_input(0, scores);
  loss.mutable_attrs().set("dtype", static_cast<int64_t>(DType::f32));
  for (Node n : gradients) {
    const Value d = n.output(0);
    n.set_input(1, scores);
    n.mutable_attrs().set("dtype", static_cast<int64_t>(DType::bf16));
    g.set_type(d, {DType::bf16, d.type().shape});
    for (Node cast : readers.of(d)) g.replace_uses(cast.output(0), d);
  }
  return true;
}

constexpr PatternRule<const Readers&> kRules[] = {
    {.name = "chunk_logits/narrow",
     .reason = "The loss needs no float32 copy of bfloat16 scores: its kernels convert them.",
     .pattern = "loss: steep.SoftmaxCrossEntropy(wide: Cast(scores), ...)",
     .then = narrow}};

}  // namespace

void narrow_scores(Graph& g) {
  const Readers readers(g);
  for (Node n : g.nodes()) apply_rules(kRules, n, Match(), readers);
  g.prune();
}

std::vector<PatternRuleInfo> narrow_scores_patterns() { return list_rules(kRules); }

}  // namespace steep
