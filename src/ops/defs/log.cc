// y = ln x
#include "ops/build.h"

namespace steep {
namespace {

Grads log_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] / x};
}

}  // namespace

extern const OpDef kLog = {.name = "Log", .elementwise = true, .vjp = log_vjp};

}  // namespace steep
