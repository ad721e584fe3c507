// Pad(x, pads, value?, axes?), mode "constant": x in a frame of `value`. Negative pads cut.
#include "ops/build.h"
#include "steep/error.h"

namespace steep {
namespace {

Grads pad_vjp(Node n, const Grads& dy) {
  const std::string mode = n.attrs().string("mode", "constant");
  if (mode != "constant") {
    throw ModelError(
        {.what = "Padding that repeats data has no gradient.",
         .node = n.name(),
         .op = n.op(),
         .expected = "mode \"constant\"",
         .received = "mode \"" + mode + "\"",
         .remedy = "Pad with a constant, or keep the padded value free of trained parameters."});
  }
  Value pads = n.input(1), axes = n.input(3);
  if (const Tensor* t = constant(pads)) {
    Ints cut = t->to_ints();
    for (int64_t& p : cut) p = -p;
    pads = ints(n.graph(), cut);
  } else {
    pads = -pads;
  }
  // Cutting the frame off is padding by its negative.
  Value dx = axes ? apply("Pad", {dy[0], pads, Value(), axes}) : apply("Pad", {dy[0], pads});
  return {dx, Value(), n.input(2) ? sum(dy[0], {}, false) - sum(dx, {}, false) : Value()};
}

}  // namespace

extern const OpDef kPad = {.name = "Pad", .vjp = pad_vjp};

}  // namespace steep
