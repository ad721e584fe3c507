// Col2Im(x[N, C Π block, L], image_shape, block_shape): adds blocks into images. The transpose of a
// convolution that copies each element of a block into a channel.
#include "ops/build.h"
#include "ops/defs/conv.h"
#include "ops/positions.h"
#include "ops/steep_types.h"
#include "runtime/counted.h"

namespace steep {
namespace {

Ints constant_extents(Node n, int i) {
  const Tensor* t = constant(n.input(i));
  if (t == nullptr) {
    throw_shape_error(n, "The shape of an image or of a block is computed.", "a constant",
                      to_string(n.input(i).type()));
  }
  return t->to_ints();
}

std::vector<Type> col2im_infer(Node n) {
  Type type{n.input(0).dtype(), {}};
  const auto& x = shape_if_known(n.input(0));
  if (!x || x->size() != 3) return {type};
  if (constant(n.input(1)) == nullptr || constant(n.input(2)) == nullptr) {
    const auto& axes = shape_if_known(n.input(1));
    if (axes && axes->size() == 1 && (*axes)[0].known()) {
      type.shape = Shape(static_cast<size_t>(2 + (*axes)[0].value()));
      (*type.shape)[0] = (*x)[0];
    }
    return {type};
  }
  const int64_t taps = element_count(constant_extents(n, 2));
  const Dim& columns = (*x)[1];
  if (taps < 1 || (columns.known() && columns.value() % taps != 0)) {
    throw_shape_error(n, "The columns do not divide into whole blocks.",
                      "a multiple of " + std::to_string(taps), to_string(x));
  }
  type.shape = Shape{(*x)[0], columns.known() ? Dim(columns.value() / taps) : Dim()};
  for (int64_t extent : constant_extents(n, 1)) type.shape->emplace_back(extent);
  return {type};
}

std::vector<Value> col2im_decompose(Node n) {
  Graph& g = n.graph();
  Value x = n.input(0);
  const Ints image = constant_extents(n, 1), block = constant_extents(n, 2);
  const size_t rank = image.size();
  const Attrs& attrs = n.attrs();
  const Ints strides = attrs.ints("strides", Ints(rank, 1));
  const Ints dilations = attrs.ints("dilations", Ints(rank, 1));
  const Ints pads = attrs.ints("pads", Ints(2 * rank, 0));
  if (block.size() != rank || strides.size() != rank || dilations.size() != rank ||
      pads.size() != 2 * rank) {
    throw_shape_error(n, "The attributes do not fit the image.", counted(rank, "dimension"),
                      std::to_string(block.size()));
  }
  const int64_t taps = element_count(block);
  Ints blocks{-1, taps}, weight{taps, 1}, planes{-1, 1};
  for (size_t i = 0; i < rank; ++i) {
    const int64_t reach = (block[i] - 1) * dilations[i] + 1;
    blocks.push_back((image[i] + pads[i] + pads[rank + i] - reach) / strides[i] + 1);
    weight.push_back(block[i]);
    planes.push_back(image[i]);
  }
  Value channels = reshape(x, blocks);
  Value zeros = apply("Expand", {scalar(g, 0, x.dtype()), ints(g, {taps, taps})});
  Value copies = reshape(apply("EyeLike", {zeros}), weight);
  Value batch = apply("Shape", {channels}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
  Value shape = concat({batch, ints(g, Ints(planes.begin() + 1, planes.end()))}, 0);
  Value images = conv_grad_input(channels, copies, shape,
                                 {{"strides", strides}, {"dilations", dilations}, {"pads", pads}});
  Value columns = as_vector(extent_of(x, 1));
  return {reshape(
      images, concat({as_vector(extent_of(x, 0)), columns / ints(g, {taps}), ints(g, image)}, 0))};
}

}  // namespace

extern const OpDef kCol2Im = {.name = "Col2Im",
                              .ranks = "3 1 1",
                              .sizes = {{1, 0}, {2, 1}},
                              .reads_from = 1,
                              .infer = col2im_infer,
                              .decompose = col2im_decompose};

}  // namespace steep
