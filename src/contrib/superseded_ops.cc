// Operators that ONNX now has under the same or a similar name.
#include <fmt/format.h>

#include "contrib/contrib.h"

namespace steep {
namespace {

Results expand_dims(const ContribCall& /*c*/, ContribBody& f) {
  f.ints("one", {-1});
  f.add("wide = Cast <to = 7> (axis)  axes = Reshape (wide, one)  y = Unsqueeze (X, axes)");
  return {"y"};
}

Results gather_nd(const ContribCall& /*c*/, ContribBody& f) {
  f.add("places = Cast <to = 7> (indices)  y = GatherND (data, places)");
  return {"y"};
}

Results grid_sample(const ContribCall& c, ContribBody& f) {
  const std::string mode = c.text("mode"), padding = c.text("padding_mode");
  const char* today = mode == "bilinear"  ? "linear"
                      : mode == "nearest" ? "nearest"
                      : mode == "bicubic" ? "cubic"
                                          : nullptr;
  if (today == nullptr || (padding != "zeros" && padding != "border" && padding != "reflection")) {
    c.fail("An attribute has a value that the operator does not know.",
           "mode bilinear, nearest or bicubic; padding_mode zeros, border or reflection",
           fmt::format("{}, {}", mode.substr(0, 40), padding.substr(0, 40)),
           "Export the model again.");
  }
  f.add(
      fmt::format("y = GridSample <align_corners = {}, mode = \"{}\", padding_mode = \"{}\"> "
                  "(X, Grid)",
                  (c.flag("align_corners") ? 1 : 0), today, padding));
  return {"y"};
}

Results pad(const ContribCall& c, ContribBody& f) {
  const std::string mode = c.text("mode");
  if (mode != "constant" && mode != "reflect" && mode != "edge") {
    c.fail("An attribute has a value that the operator does not know.",
           "mode constant, reflect or edge", mode.substr(0, 40), "Export the model again.");
  }
  f.ints("one", {-1});
  f.add("flat = Reshape (pads, one)");
  if (c.has(2)) f.add("filling = Squeeze (value)");
  f.add(fmt::format("y = Pad <mode = \"{}\"> (data, flat{})", mode, c.has(2) ? ", filling" : ""));
  return {"y"};
}

Results range(const ContribCall& c, ContribBody& f) {
  f.add("from = Squeeze (start)  until = Squeeze (limit)");
  if (c.has(2)) {
    f.add("step = Squeeze (delta)");
  } else {
    f.scalar("step", 1, "start");
  }
  f.add("y = Range (from, until, step)");
  return {"y"};
}

Results sample_op(const ContribCall& /*c*/, ContribBody& f) {
  f.add("y = Identity (X)");
  return {"y"};
}

Results trilu(const ContribCall& c, ContribBody& f) {
  f.add(
      fmt::format("y = Trilu <upper = {}> (X{})", c.flag("upper") ? 1 : 0, c.has(1) ? ", k" : ""));
  return {"y"};
}

// ONNX's second output is the index of the first occurrence; it is dropped.
Results unique(const ContribCall& /*c*/, ContribBody& f) {
  f.add("y, first, idx, counts = Unique <sorted = 0> (x)");
  return {"y", "idx", "counts"};
}

}  // namespace

extern const ContribOp kContribExpandDims = {
    .name = "ExpandDims", .inputs = {"X", "axis"}, .build = expand_dims};
extern const ContribOp kContribGatherND = {
    .name = "GatherND", .inputs = {"data", "indices"}, .build = gather_nd};
extern const ContribOp kContribGridSample = {
    .name = "GridSample",
    .inputs = {"X", "Grid"},
    .attributes = {{"align_corners", 0}, {"mode", "bilinear"}, {"padding_mode", "zeros"}},
    .build = grid_sample};
extern const ContribOp kContribPad = {.name = "Pad",
                                      .inputs = {"data", "pads", "value?"},
                                      .attributes = {{"mode", "constant"}},
                                      .build = pad};
extern const ContribOp kContribRange = {
    .name = "Range", .inputs = {"start", "limit", "delta?"}, .build = range};
extern const ContribOp kContribSampleOp = {.name = "SampleOp", .inputs = {"X"}, .build = sample_op};
extern const ContribOp kContribTrilu = {
    .name = "Trilu", .inputs = {"X", "k?"}, .attributes = {{"upper", 1}}, .build = trilu};
extern const ContribOp kContribUnique = {
    .name = "Unique", .inputs = {"x"}, .outputs = 3, .build = unique};

}  // namespace steep
