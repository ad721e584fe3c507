// steep.ConvGradInput(dy, w, shape) → dx and steep.ConvGradWeight(dy, x, shape) → dw: the gradients
// of Conv(x, w) with the same attributes. allow_bf16 applies to the operands that each op reads;
// `shape` is the shape of the result.
#include "ops/build.h"
#include "ops/defs/conv.h"
#include "ops/positions.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

Grads conv_grad_input_vjp(Node n, const Grads& dy) {
  Value upstream = n.input(0), w = n.input(1), dx = dy[0];
  return {conv(dx, w, n.attrs()), conv_grad_weight(upstream, dx, shape_of(w), n.attrs())};
}

Grads conv_grad_weight_vjp(Node n, const Grads& dy) {
  Value upstream = n.input(0), x = n.input(1), dw = dy[0];
  return {conv(x, dw, n.attrs()), conv_grad_input(upstream, dw, shape_of(x), n.attrs())};
}

std::vector<Type> infer_given_shape(Node n) { return {{n.input(0).dtype(), shape_in(n.input(2))}}; }

Value swap_first(Value x) {
  Ints perm = counting(0, x.rank());
  std::swap(perm.at(0), perm.at(1));
  return transpose(x, perm);
}

/// A ConvTranspose without padding spans from the first window to the last. The result is cropped
/// to `shape`, or padded with zeros where no window read x.
std::vector<Value> conv_grad_input_in_parts(Node n) {
  Graph& g = n.graph();
  const Value dy = n.input(0), w = n.input(1), shape = n.input(2);
  const ConvWindow window(n, n.output(0).shape(), w.shape());
  Value dx = apply("ConvTranspose", {dy, w},
                   {{"strides", window.strides},
                    {"dilations", window.dilations},
                    {"group", integer_of(n, "group")}});
  const Ints begins(window.pads.begin(), window.pads.begin() + window.rank);
  const Value ends = part(shape, 2, window.rank + 2) + ints(g, begins);
  const Value missing = apply("Max", {ends - part(shape_of(dx), 2, window.rank + 2), ints(g, {0})});
  const Ints zeros(static_cast<size_t>(window.rank) + 4, 0);
  dx = apply("Pad", {dx, concat({ints(g, zeros), missing}, 0)});
  return {apply("Slice", {dx, ints(g, begins), ends, ints(g, counting(2, window.rank + 2))})};
}

/// A convolution of x with dy, with batch and channel axes swapped.
std::vector<Value> conv_grad_weight_in_parts(Node n) {
  Graph& g = n.graph();
  const Value dy = n.input(0), x = n.input(1), shape = n.input(2);
  const ConvWindow window(n, x.shape(), n.output(0).shape());
  const int64_t group = integer_of(n, "group"), rank = x.rank();
  Value images = swap_first(x);
  if (group > 1) {  // [N, C, …] → [C / group, group N, …]
    const Value extents = shape_of(x), spatial = part(extents, 2, rank);
    const Value per_group = part(extents, 1) / ints(g, {group});
    images = reshape(x, concat({part(extents, 0), ints(g, {group}), per_group, spatial}, 0));
    Ints perm = counting(0, rank + 1);
    std::swap(perm[0], perm[2]);
    images = transpose(images, perm);
    images = reshape(images, concat({per_group, ints(g, {-1}), spatial}, 0));
  }
  const Value dw = apply("Conv", {images, swap_first(dy)},
                         {{"strides", window.dilations},
                          {"dilations", window.strides},
                          {"pads", window.pads},
                          {"group", group}});
  // If the stride does not divide the extent, the result is larger than the kernel: crop it.
  const Ints starts(static_cast<size_t>(window.rank), 0);
  return {swap_first(
      apply("Slice", {dw, ints(g, starts), part(shape, 2, rank), ints(g, counting(2, rank))}))};
}

}  // namespace

extern const OpDef kSteepConvGradInput = {.name = "steep.ConvGradInput",
                                          .attributes = kConvAttributes,
                                          .vjp = conv_grad_input_vjp,
                                          .infer = infer_given_shape,
                                          .export_decomposition = conv_grad_input_in_parts};
extern const OpDef kSteepConvGradWeight = {.name = "steep.ConvGradWeight",
                                           .attributes = kConvAttributes,
                                           .vjp = conv_grad_weight_vjp,
                                           .infer = infer_given_shape,
                                           .export_decomposition = conv_grad_weight_in_parts};

}  // namespace steep
