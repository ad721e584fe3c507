// Operators that exporters wrote when ONNX had no equivalent: distances, inverses, windows, crops,
// Fourier transforms.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "contrib/contrib.h"

namespace steep {
namespace {

Results cdist(const ContribCall& c, ContribBody& f) {
  const std::string metric = c.text("metric");
  if (metric != "euclidean" && metric != "sqeuclidean") {
    c.fail("An attribute is not supported.", "metric euclidean or sqeuclidean",
           metric.substr(0, 40), "Write the distance with operators of ONNX.");
  }
  f.ints("rows", {1});
  f.ints("columns", {0});
  f.ints("last", {2});
  f.add(
      fmt::format("each_a = Unsqueeze (A, rows)  each_b = Unsqueeze (B, columns)"
                  "  apart = Sub (each_a, each_b)  y = {} <keepdims = 0> (apart, last)",
                  metric == "euclidean" ? "ReduceL2" : "ReduceSumSquare"));
  return {"y"};
}

Results conv_transpose_with_dynamic_pads(const ContribCall& c, ContribBody& f) {
  if (c.text("auto_pad") != "NOTSET") {
    c.fail("An attribute is not supported.", "auto_pad NOTSET", c.text("auto_pad").substr(0, 40),
           "Export the model with ConvTranspose.");
  }
  std::string attributes = fmt::format("group = {}", c.integer("group"));
  for (const char* name : {"dilations", "kernel_shape", "output_padding", "strides"}) {
    const Ints values = c.attrs.ints(name);
    if (!values.empty()) attributes += fmt::format(", {} = [{}]", name, fmt::join(values, ", "));
  }
  f.add(fmt::format("whole = ConvTranspose <{}> (X, W{})", attributes, c.has(3) ? ", B" : ""));
  if (!c.has(2)) return {"whole"};
  Ints axes(c.rank(0) < 2 ? 0 : c.rank(0) - 2);
  std::iota(axes.begin(), axes.end(), 2);
  f.ints("axes", axes);
  f.add(
      "begins, ends = Split <axis = 0, num_outputs = 2> (Pads)  extents = Shape <start = 2> (whole)"
      "  stops = Sub (extents, ends)  y = Slice (whole, begins, stops, axes)");
  return {"y"};
}

// The corners of boxes are corners of the crops. A crop with one row is taken at the middle of the
// box.
Results crop_and_resize(const ContribCall& c, ContribBody& f) {
  if (c.text("mode") != "bilinear") {
    c.fail("An attribute is not supported.", "mode bilinear", c.text("mode").substr(0, 40),
           "Export the model with mode bilinear.");
  }
  f.add(
      "zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()"
      "  images = Gather <axis = 0> (X, batch_indices)"
      "  top, left, bottom, right = Split <axis = 1, num_outputs = 4> (rois)"
      "  sizes = Cast <to = 7> (crop_size)"
      "  high, wide = Split <axis = 0, num_outputs = 2> (sizes)"
      "  boxes = Shape <start = 0, end = 1> (rois)");
  f.scalar("half", 0.5, "X");
  f.scalar("two", 2, "X");
  f.scalar("unit", 1, "X");
  f.scalar("nought", 0, "X");
  f.scalar("outside", c.real("extrapolation_value"), "X");
  struct Axis {
    const char *name, *size, *from, *to;
    int64_t at;
  };
  for (const Axis& axis :
       {Axis{"y", "high", "top", "bottom", 2}, Axis{"x", "wide", "left", "right", 3}}) {
    f.ints(fmt::format("{}_spread", axis.name), {axis.name[0] == 'y' ? 2 : 1});
    f.add(fmt::format(
        "count_{0} = Squeeze ({1})  steps_{0} = Range (zero, count_{0}, one)"
        "  gaps_{0} = Sub (count_{0}, one)  safe_{0} = Max (gaps_{0}, one)"
        "  many_{0} = Greater (count_{0}, one)"
        "  step_{0} = CastLike (steps_{0}, X)  length_{0} = CastLike (safe_{0}, X)"
        "  even_{0} = Div (step_{0}, length_{0})  share_{0} = Where (many_{0}, even_{0}, half)"
        "  span_{0} = Sub ({3}, {2})  along_{0} = Mul (span_{0}, share_{0})"
        "  at_{0} = Add ({2}, along_{0})"  // [boxes, count], 0 to 1 within the image
        "  extent_{0} = Shape <start = {4}, end = {5}> (X)  last_{0} = Sub (extent_{0}, one)"
        "  final_{0} = CastLike (last_{0}, X)  pixel_{0} = Mul (at_{0}, final_{0})"
        "  above_{0} = GreaterOrEqual (pixel_{0}, nought)"
        "  below_{0} = LessOrEqual (pixel_{0}, final_{0})"
        "  within_{0} = And (above_{0}, below_{0})"
        "  twice_{0} = Mul (at_{0}, two)  flat_{0} = Sub (twice_{0}, unit)"
        "  grid_{0} = Unsqueeze (flat_{0}, {0}_spread)"
        "  line_{0} = Unsqueeze (within_{0}, {0}_spread)",
        axis.name, axis.size, axis.from, axis.to, axis.at, axis.at + 1));
  }
  f.ints("last", {-1});
  f.ints("channel", {1});
  f.add(
      "grid_shape = Concat <axis = 0> (boxes, high, wide)"
      "  all_y = Expand (grid_y, grid_shape)  all_x = Expand (grid_x, grid_shape)"
      "  deep_y = Unsqueeze (all_y, last)  deep_x = Unsqueeze (all_x, last)"
      "  grid = Concat <axis = -1> (deep_x, deep_y)"
      "  sampled = GridSample <align_corners = 1, mode = \"linear\", padding_mode = \"border\"> "
      "(images, grid)"
      "  within = And (line_y, line_x)  shown = Unsqueeze (within, channel)"
      "  y = Where (shown, sampled, outside)");
  return {"y"};
}

Results inverse(const ContribCall& /*c*/, ContribBody& f) {
  f.ints("across", {0});
  f.ints("down", {1});
  f.add(
      "zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()"
      "  extent = Shape <start = -1> (X)  count = Squeeze (extent)"
      "  steps = Range (zero, count, one)  row = Unsqueeze (steps, across)"
      "  column = Unsqueeze (steps, down)  same = Equal (row, column)"
      "  identity = CastLike (same, X)  y, info = steep.Solve (X, identity)");
  return {"y"};
}

/// The number of signal axes. Throws ModelError for attributes that ONNX Runtime does not support
/// either.
int64_t signal_axes(const ContribCall& c) {
  if (c.integer("normalized") != 0 || c.integer("onesided") != 1) {
    c.fail("An attribute is not supported.", "normalized = 0 and onesided = 1",
           fmt::format("normalized = {}, onesided = {}", c.integer("normalized"),
                       c.integer("onesided")),
           "Export the model with DFT.");
  }
  const int64_t axes = c.integer("signal_ndim");
  if (axes < 1 || axes > 3) {
    c.fail("An attribute is out of range.", "signal_ndim of 1 to 3", fmt::format("{}", axes),
           "Export the model with DFT.");
  }
  return axes;
}

/// Transforms complex numbers along the signal's axes except its last; the last axis of `x` holds
/// real and imaginary parts.
std::string transformed(ContribBody& f, std::string x, int64_t axes, bool inverse) {
  for (int64_t i = 2; i <= axes; ++i) {
    f.add(
        fmt::format("axis_{0} = Constant <value_int = -{1}> ()"
                    "  along_{0} = DFT <inverse = {2}> ({3}, , axis_{0})",
                    i, i + 1, inverse ? 1 : 0, x));
    x = fmt::format("along_{}", i);
  }
  return x;
}

Results rfft(const ContribCall& c, ContribBody& f) {
  const int64_t axes = signal_axes(c);
  f.ints("last", {-1});
  f.add(
      "parts = Unsqueeze (X, last)  axis = Constant <value_int = -2> ()"
      "  line = DFT <onesided = 1> (parts, , axis)");
  return {transformed(f, "line", axes, false)};
}

Results irfft(const ContribCall& c, ContribBody& f) {
  const int64_t axes = signal_axes(c);
  const std::string lines = transformed(f, "X", axes, true);
  f.ints("last", {-1});
  f.add(
      fmt::format("axis = Constant <value_int = -2> ()"
                  "  real = DFT <inverse = 1, onesided = 1> ({}, , axis)"
                  "  y = Squeeze (real, last)",
                  lines));
  return {"y"};
}

Results unfold_tensor(const ContribCall& c, ContribBody& f) {
  const auto rank = static_cast<int64_t>(c.rank(0));
  const int64_t dim = c.integer("dim"), axis = dim < 0 ? dim + rank : dim;
  const int64_t size = c.integer("size"), step = c.integer("step");
  if (axis < 0 || axis >= rank || size < 1 || size > kFar || step < 1 || step > kFar) {
    c.fail("An attribute is out of range.",
           fmt::format("dim of {} to {}, size and step from 1 on", -rank, rank - 1),
           fmt::format("dim = {}, size = {}, step = {}", dim, size, step),
           "Export the model again.");
  }
  Ints perm;
  for (int64_t i = 0; i <= rank; ++i) {
    if (i != axis + 1) perm.push_back(i);
  }
  perm.push_back(axis + 1);
  f.ints("down", {1});
  f.add(
      fmt::format("zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()"
                  "  size = Constant <value_int = {0}> ()  step = Constant <value_int = {1}> ()"
                  "  extent = Shape <start = {2}, end = {3}> (input)  length = Squeeze (extent)"
                  "  room = Sub (length, size)  reach = Add (room, step)  count = Div (reach, step)"
                  "  spans = Range (zero, count, one)  starts = Mul (spans, step)"
                  "  column = Unsqueeze (starts, down)  within = Range (zero, size, one)"
                  "  index = Add (column, within)  slices = Gather <axis = {2}> (input, index)"
                  "  y = Transpose <perm = [{4}]> (slices)",
                  size, step, axis, axis + 1, fmt::join(perm, ", ")));
  return {"y"};
}

}  // namespace

extern const ContribOp kContribCDist = {.name = "CDist",
                                        .inputs = {"A", "B"},
                                        .attributes = {{"metric", "sqeuclidean"}},
                                        .build = cdist};
extern const ContribOp kContribConvTransposeWithDynamicPads = {
    .name = "ConvTransposeWithDynamicPads",
    .inputs = {"X", "W", "Pads?", "B?"},
    .attributes = {{"auto_pad", "NOTSET"}, {"group", 1}},
    .lists = {"dilations", "kernel_shape", "output_padding", "strides"},
    .build = conv_transpose_with_dynamic_pads};
extern const ContribOp kContribCropAndResize = {
    .name = "CropAndResize",
    .inputs = {"X", "rois", "batch_indices", "crop_size"},
    .attributes = {{"extrapolation_value", 0.0}, {"mode", "bilinear"}},
    .build = crop_and_resize};
extern const ContribOp kContribInverse = {.name = "Inverse", .inputs = {"X"}, .build = inverse};
extern const ContribOp kContribIrfft = {
    .name = "Irfft",
    .inputs = {"X"},
    .attributes = {{"normalized", 0}, {"onesided", 1}, {"signal_ndim", 0}},
    .build = irfft};
extern const ContribOp kContribRfft = {
    .name = "Rfft",
    .inputs = {"X"},
    .attributes = {{"normalized", 0}, {"onesided", 1}, {"signal_ndim", 1}},
    .build = rfft};
extern const ContribOp kContribUnfoldTensor = {
    .name = "UnfoldTensor",
    .inputs = {"input"},
    .attributes = {{"dim", -1}, {"size", 0}, {"step", 1}},
    .build = unfold_tensor};

}  // namespace steep
