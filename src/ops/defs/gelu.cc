// y = x Φ(x), or its tanh approximation. Hendrycks & Gimpel 2016
#include "ops/build.h"

namespace steep {
namespace {

Grads gelu_vjp(Node n, const Grads& dy) {
  return {apply("steep.GeluGrad", {dy[0], n.input(0)}, n.attrs())};
}

}  // namespace

extern const OpDef kGelu = {
    .name = "Gelu", .attributes = {{"approximate", "none"}}, .elementwise = true, .vjp = gelu_vjp};

}  // namespace steep
