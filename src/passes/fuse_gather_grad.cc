// What is added to the gradient of a gather becomes the array that the gather's slices are added
// to:
//
//   Add(x, steep.GatherGrad(dy, i, shape))  →  steep.GatherGrad(dy, i, shape, x)
//
// A vocabulary's embedding that is also the output layer gets its two gradients so. They are as
// large as the weight; the sum touches only the rows of the words that occur.

#include <algorithm>

#include "ops/build.h"
#include "passes/pipeline.h"

namespace steep {

void fuse_gather_grad(Graph& g) {
  const auto users = g.users();
  for (Node add : g.nodes()) {
    if (add.op() != "Add" || !provably_equal(add.input(0).shape(), add.input(1).shape())) continue;
    for (int i : {1, 0}) {
      Value slices = add.input(i), base = add.input(1 - i);
      Node gather = slices.producer();
      if (!gather || gather.op() != "steep.GatherGrad" || gather.input(3)) continue;
      if (users[slices.id()].size() != 1 || g.is_output(slices) || gather.phase() != add.phase())
        continue;
      const Graph::Scope scope(g, add.phase(), add.name());
      Value sum = apply("steep.GatherGrad",
                        {gather.input(0), gather.input(1), gather.input(2), base}, gather.attrs());
      g.place_like(sum.producer(), add);
      g.replace_uses(add.output(0), sum);
      break;
    }
  }
}

}  // namespace steep
