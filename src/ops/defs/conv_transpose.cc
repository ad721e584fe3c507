// ConvTranspose(x[N, C, ...], w[C, O / group, ...], bias[O]?): the transpose of the convolution
// with w, that is, the gradient of that convolution for its input.
#include <algorithm>

#include "ops/build.h"
#include "ops/defs/conv.h"
#include "ops/steep_types.h"
#include "steep/error.h"

namespace steep {
namespace {

/// The attributes of the convolution of which n is the transpose, with auto_pad resolved to pads.
Attrs convolution_of(Node n) {
  Attrs attrs = conv_attrs(n.attrs());
  const std::string auto_pad = text_of(n, "auto_pad");
  const Ints sizes = n.attrs().ints("output_shape");
  const bool same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
  if (auto_pad == "VALID") attrs.erase("pads");
  attrs.erase("auto_pad");
  if (!same && sizes.empty()) return attrs;

  const Shape& x = n.input(0).shape();
  const Shape& w = n.input(1).shape();
  const size_t rank = w.size() - 2;
  const Ints strides = attrs.ints("strides", Ints(rank, 1));
  const Ints dilations = attrs.ints("dilations", Ints(rank, 1));
  const Ints more = n.attrs().ints("output_padding", Ints(rank, 0));
  Ints pads(2 * rank);
  for (size_t i = 0; i < rank; ++i) {
    const Dim &in = x[i + 2], &kernel = w[i + 2];
    if (!kernel.known() || (!sizes.empty() && !in.known())) {
      throw ModelError({.what = "The pads of a transposed convolution depend on unknown extents.",
                        .node = n.name(),
                        .op = n.op(),
                        .expected = "known spatial extents of the inputs",
                        .received = to_string(x) + " and " + to_string(w),
                        .remedy = "Export with pads instead of output_shape or auto_pad."});
    }
    const int64_t reach = (kernel.value() - 1) * dilations[i] + 1;
    // With auto_pad and no output_shape, y has `stride` elements for each element of x.
    const int64_t total = sizes.empty() ? more[i] + reach - strides[i]
                                        : strides[i] * (in.value() - 1) + more[i] + reach -
                                              sizes[sizes.size() - rank + i];
    const int64_t amount = std::max<int64_t>(total, 0);
    pads[i] = auto_pad == "SAME_UPPER" ? amount / 2 : amount - amount / 2;
    pads[rank + i] = amount - pads[i];
  }
  attrs.set("pads", pads);
  return attrs;
}

/// If output_padding is a stride or more, which dilated kernels allow, the convolution with `attrs`
/// would have windows beyond x. Removes these windows: reduces the pads in `attrs` first, then
/// crops dy.
Value without_windows_beyond(Node n, Value dy, Attrs& attrs) {
  const Ints more = n.attrs().ints("output_padding", {});
  const size_t rank = more.size();
  const Ints strides = attrs.ints("strides", Ints(rank, 1));
  Ints pads = attrs.ints("pads", Ints(2 * rank, 0));
  Ints axes, starts, ends;
  bool beyond = false;
  for (size_t i = 0; i < rank; ++i) {
    if (more[i] < strides[i]) continue;
    beyond = true;
    int64_t& pad = pads[rank + i];
    const int64_t cut = std::max<int64_t>(more[i] - pad, 0);
    pad = std::max<int64_t>(pad - more[i], 0);
    if (cut == 0) continue;
    axes.push_back(static_cast<int64_t>(i) + 2);
    starts.push_back(0);
    ends.push_back(-cut);
  }
  if (beyond) attrs.set("pads", pads);
  if (axes.empty()) return dy;
  Graph& g = n.graph();
  return apply("Slice", {dy, ints(g, starts), ints(g, ends), ints(g, axes)});
}

Grads conv_transpose_vjp(Node n, const Grads& dy) {
  Value x = n.input(0), w = n.input(1);
  Attrs attrs = convolution_of(n);
  Value windows = without_windows_beyond(n, dy[0], attrs);
  return {conv(windows, w, attrs), conv_grad_weight(x, windows, shape_of(w), attrs),
          n.input(2) ? sum_per_channel(dy[0]) : Value()};
}

/// REQUIRES: known shapes.
std::vector<Value> conv_transpose_decompose(Node n) {
  Value bias = n.input(2);
  const Dims shape = n.output(0).type().dims();
  Value y = conv_grad_input(n.input(0), n.input(1), ints(n.graph(), shape), convolution_of(n));
  if (!bias) return {y};
  Ints per_channel(shape.size(), 1);
  per_channel[1] = -1;
  return {y + reshape(bias, per_channel)};
}

}  // namespace

extern const OpDef kConvTranspose = {.name = "ConvTranspose",
                                     .attributes = {{"auto_pad", "NOTSET"}, {"group", 1}},
                                     .ranks = "2+ = 1",
                                     .vjp = conv_transpose_vjp,
                                     .refine = conv_refine,
                                     .decompose = conv_transpose_decompose};

}  // namespace steep
