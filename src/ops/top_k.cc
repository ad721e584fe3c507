// The k largest (or smallest) elements along `axis`, and where they are
#include "ops/build.h"

namespace steep {
namespace {

Grads top_k_vjp(Node n, const Grads& dy) {
  if (!dy[0]) return {};
  const std::vector operands{n.input(0), n.input(1)};
  const Value indices = n.output(1) ? n.output(1) : apply_n("TopK", operands, 2, n.attrs())[1];
  return {apply("ScatterElements", {zeros_like(n.input(0)), indices, dy[0]},
                {{"axis", integer_of(n, "axis")}})};
}

}  // namespace

extern const OpDef kTopK = {.name = "TopK",
                            .attributes = {{"axis", -1}, {"largest", 1}, {"sorted", 1}},
                            .ranks = ". 1",
                            .vjp = top_k_vjp};

}  // namespace steep
