// y = x - ln Σ exp(x) along `axis`
#include "ops/build.h"

namespace steep {
namespace {

Grads log_softmax_vjp(Node n, const Grads& dy) {
  const Ints axis{n.attrs().integer("axis", -1)};
  return {dy[0] - exp(n.output(0)) * sum(dy[0], axis, true)};
}

}  // namespace

extern const OpDef kLogSoftmax = {.name = "LogSoftmax", .vjp = log_softmax_vjp};

}  // namespace steep
