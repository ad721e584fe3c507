// y = data with y[indices[i][j]][j] = updates[i][j] (axis 0), or combined with it under
// `reduction`.
#include "ops/build.h"
#include "ops/defs/scatter.h"

namespace steep {
namespace {

Value read(Node n, Value from) {
  return apply("GatherElements", {from, n.input(1)}, {{"axis", integer_of(n, "axis")}});
}

Value write(Node n, Value onto, Value updates, const std::string& reduction) {
  Attrs attrs = n.attrs();
  attrs.set("reduction", reduction);
  return apply("ScatterElements", {onto, n.input(1), updates}, attrs);
}

Grads scatter_elements_vjp(Node n, const Grads& dy) { return scatter_vjp(n, dy, {read, write}); }

}  // namespace

extern const OpDef kScatterElements = {.name = "ScatterElements",
                                       .attributes = {{"axis", 0}, {"reduction", "none"}},
                                       .ranks = "1+ = =",
                                       .vjp = scatter_elements_vjp};

}  // namespace steep
