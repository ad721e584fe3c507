// Conv(x[N, C, ...], w[O, C / group, ...], bias[O]?): cross-correlation over the spatial axes. With
// the attribute allow_bf16 a kernel may round x and w to bfloat16; sums and y stay float32.
#include "ops/conv.h"

#include "ops/build.h"

namespace steep {

Attrs conv_attrs(const Attrs& attrs) {
  Attrs ours;
  for (const char* name : {"strides", "dilations", "group", "pads", "auto_pad"}) {
    if (const Attr* a = attrs.find(name)) ours.set(name, *a);
  }
  return ours;
}

Value conv(Value x, Value w, const Attrs& attrs) {
  return apply("Conv", {x, w}, conv_attrs(attrs));
}

Value conv_grad_input(Value dy, Value w, Value shape, const Attrs& attrs) {
  return apply("steep.ConvGradInput", {dy, w, shape}, conv_attrs(attrs));
}

Value conv_grad_weight(Value dy, Value x, Value shape, const Attrs& attrs) {
  return apply("steep.ConvGradWeight", {dy, x, shape}, conv_attrs(attrs));
}

Value sum_per_channel(Value x) {
  Ints axes{0};
  for (int64_t i = 2; i < x.rank(); ++i) axes.push_back(i);
  return sum(x, axes, false);
}

namespace {

Grads conv_vjp(Node n, const Grads& dy) {
  Value x = n.input(0), w = n.input(1);
  return {conv_grad_input(dy[0], w, shape_of(x), n.attrs()),
          conv_grad_weight(dy[0], x, shape_of(w), n.attrs()),
          n.input(2) ? sum_per_channel(dy[0]) : Value()};
}

}  // namespace

extern const OpDef kConv = {.name = "Conv", .vjp = conv_vjp};

}  // namespace steep
