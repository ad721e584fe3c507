// y = data with y[indices[i]] = updates[i], or combined with it under `reduction`; indices[i] is a
// tuple.
#include "ops/build.h"
#include "ops/defs/scatter.h"

namespace steep {
namespace {

Value read(Node n, Value from) { return apply("GatherND", {from, n.input(1)}); }

Value write(Node n, Value onto, Value updates, const std::string& reduction) {
  return apply("ScatterND", {onto, n.input(1), updates}, {{"reduction", reduction}});
}

Grads scatter_nd_vjp(Node n, const Grads& dy) { return scatter_vjp(n, dy, {read, write}); }

}  // namespace

extern const OpDef kScatterND = {.name = "ScatterND",
                                 .attributes = {{"reduction", "none"}},
                                 .ranks = "1+ 1+",
                                 .vjp = scatter_nd_vjp};

}  // namespace steep
