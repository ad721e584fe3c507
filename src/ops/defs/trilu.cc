// Keeps one triangle of each matrix and clears the other
#include "ops/build.h"

namespace steep {
namespace {

Grads trilu_vjp(Node n, const Grads& dy) {
  return {apply("Trilu", {dy[0], n.input(1)}, n.attrs())};
}

}  // namespace

extern const OpDef kTrilu = {
    .name = "Trilu", .attributes = {{"upper", 1}}, .ranks = "2+ e", .vjp = trilu_vjp};

}  // namespace steep
