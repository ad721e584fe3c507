// y = x - ln Σ exp(x) along `axis`
#include "ops/build.h"

namespace steep {
namespace {

Grads log_softmax_vjp(Node n, const Grads& dy) {
  const Ints axis{integer_of(n, "axis")};
  return {dy[0] - exp(n.output(0)) * sum(dy[0], axis, true)};
}

}  // namespace

extern const OpDef kLogSoftmax = {
    .name = "LogSoftmax", .attributes = {{"axis", -1}}, .vjp = log_softmax_vjp};

}  // namespace steep
