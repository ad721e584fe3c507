// The k largest (or smallest) elements along `axis`, and where they are
#include "ops/build.h"

namespace steep {
namespace {

Grads top_k_vjp(Node n, const Grads& dy) {
  if (!dy[0]) return {};
  return {apply("ScatterElements", {zeros_like(n.input(0)), n.output(1), dy[0]},
                {{"axis", n.attrs().integer("axis", -1)}})};
}

}  // namespace

extern const OpDef kTopK = {.name = "TopK", .vjp = top_k_vjp};

}  // namespace steep
