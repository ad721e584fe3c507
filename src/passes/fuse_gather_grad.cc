// Moves an addition to the gradient of a gather into that gradient. The addend becomes the array to
// which the slices are added:
//
//   Add(x, steep.GatherGrad(dy, i, shape))  →  steep.GatherGrad(dy, i, shape, x)
//
// This happens if the embedding of a vocabulary is also the output layer: the weight has two
// gradients. Each is as large as the weight, but the addition then touches only the rows of words
// that occur.

#include "ops/build.h"
#include "passes/pipeline.h"

namespace steep {
namespace {

bool add_in_place(const Match& m) {
  const Node add = m.node("sum"), slices = m.node("slices");
  if (!provably_equal(add.input(0).shape(), add.input(1).shape())) return false;
  if (slices.phase() != add.phase()) return false;
  Graph& g = add.graph();
  const Graph::Scope scope(g, add.phase(), add.name());
  const Value sum =
      apply("steep.GatherGrad", {m["dy"], m["indices"], m["shape"], m["base"]}, slices.attrs());
  g.place_like(sum.producer(), add);
  g.replace_uses(m["sum"], sum);
  return true;
}

constexpr PatternRule<> kRules[] = {
    {.name = "fuse_gather_grad/sum",
     .reason = "The sum of two gradients of a vocabulary's size touches only the rows that occur.",
     .pattern = "sum: Add{base, only slices: steep.GatherGrad(dy, indices, shape)}",
     .then = add_in_place}};

}  // namespace

void fuse_gather_grad(Graph& g) {
  const Readers readers(g);
  for (Node n : g.nodes()) apply_rules(kRules, n, Match(readers));
}

std::vector<PatternRuleInfo> fuse_gather_grad_patterns() { return list_rules(kRules); }

}  // namespace steep
