// Conv(x[N, C, ...], w[O, C / group, ...], bias[O]?): cross-correlation over the spatial axes. With
// the attribute allow_bf16 a kernel may round x and w to bfloat16; sums and y stay float32.
#include "ops/defs/conv.h"

#include "ops/build.h"
#include "steep/error.h"

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

ConvWindow::ConvWindow(Node n, const Shape& x, const Shape& w)
    : rank(static_cast<int64_t>(w.size()) - 2) {
  const Attrs& attrs = n.attrs();
  const auto axes = static_cast<size_t>(rank);
  strides = attrs.ints("strides", Ints(axes, 1));
  dilations = attrs.ints("dilations", Ints(axes, 1));
  pads = attrs.ints("pads", Ints(2 * axes, 0));
  const std::string auto_pad = text_of(n, "auto_pad");
  if (auto_pad == "NOTSET") return;
  pads.assign(2 * axes, 0);
  for (size_t i = 0; auto_pad != "VALID" && i < axes; ++i) {
    const Dim& kernel = w[i + 2];
    // With a stride of 1 the pads do not depend on the extent.
    const Dim in = strides[i] == 1 ? Dim(1) : x[i + 2];
    if (!in.known() || !kernel.known()) {
      throw ModelError({.what = "The pads of a convolution depend on unknown extents.",
                        .node = n.name(),
                        .op = n.op(),
                        .expected = "known spatial extents",
                        .received = to_string(x),
                        .remedy = "Export with pads instead of auto_pad."});
    }
    const int64_t reach = (kernel.value() - 1) * dilations[i] + 1;
    const int64_t out = (in.value() + strides[i] - 1) / strides[i];
    const int64_t total = std::max<int64_t>((out - 1) * strides[i] + reach - in.value(), 0);
    pads[i] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    pads[axes + i] = total - pads[i];
  }
}

void conv_refine(Node n) {
  if (n.input(0).type().shape && !n.output(0).type().shape) {
    n.graph().set_type(n.output(0), {n.output(0).dtype(), Shape(n.input(0).shape().size())});
  }
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

extern const OpDef kConv = {.name = "Conv",
                            .attributes = kConvAttributes,
                            .ranks = "2+ = 1",
                            .vjp = conv_vjp,
                            .refine = conv_refine};

}  // namespace steep
