// steep.Deliver(x){receiver, index} → 1, a float32 scalar: hands the bytes of x to a function of
// the host (runtime/receiver.h), and its memory is free afterwards. For gradients that are sent to
// another process as soon as they are there. Receiver 0 is nobody.
#include "ops/build.h"
#include "ops/op_def.h"

namespace steep {
namespace {

std::vector<Type> deliver_infer(Node) { return {{DType::f32, Shape{}}}; }

}  // namespace

extern const OpDef kSteepDeliver = {.name = "steep.Deliver",
                                    .attributes = {{"receiver", int64_t{0}}, {"index", int64_t{0}}},
                                    .stops_gradient = true,
                                    .infer = deliver_infer};

}  // namespace steep
