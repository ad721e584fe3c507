// Operators that move elements. For most of them, attributes of old opsets became inputs.

#include <fmt/format.h>

#include "model/upgrade/rules.h"
#include "ops/build.h"
#include "runtime/counted.h"

namespace steep {
namespace {

Bindings bindings_of(const std::vector<Value>& values) { return {values.begin(), values.end()}; }

Attrs without(Attrs attrs, std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) attrs.erase(name);
  return attrs;
}

}  // namespace

Bindings upgrade_axes_attribute(const Call& c) {
  if (!c.attrs.has("axes")) return c.as_is();
  const Ints axes = c.attrs.ints("axes");
  // In old opsets an empty list meant "all axes", like an absent one.
  const Value input = axes.empty() && c.op != "Unsqueeze" ? Value() : c.ints(axes);
  return {c.emit1(c.op, {c.need(0), input}, without(c.attrs, {"axes"}))};
}

Bindings upgrade_flatten(const Call& c) {
  const Value x = c.need(0);
  const int64_t rank = x.rank();
  int64_t axis = c.integer("axis");
  if (axis < -rank || axis > rank) {
    c.fail("An axis is out of range.", fmt::format("{} to {}", -rank, rank),
           fmt::format("axis {}", axis), "Export the model again.");
  }
  if (axis < 0) axis += rank;
  auto extent = [&](int64_t begin, int64_t end) {  // -1 when unknown
    int64_t product = 1;
    for (int64_t i = begin; i < end; ++i) {
      const Dim& d = x.shape()[static_cast<size_t>(i)];
      if (!d.known() || __builtin_mul_overflow(product, d.value(), &product)) return int64_t{-1};
    }
    return product;
  };
  const int64_t rows = extent(0, axis);
  const int64_t columns = extent(axis, rank);
  // A -1 beside an extent of 0 is ambiguous, so -1 is used only beside a positive extent.
  if ((rows >= 0 && columns >= 0) || rows > 0 || columns > 0) {
    return {c.emit1("Reshape", {x, c.ints({rows, columns})}, {{"allowzero", int64_t{1}}})};
  }
  const Value shape = shape_of(x);
  auto part = [&](int64_t begin, int64_t end) {
    const Value piece = apply("Slice", {shape, c.ints({begin}), c.ints({end})});
    return apply("ReduceProd", {piece}, {{"keepdims", int64_t{1}}});
  };
  const Value target = concat({part(0, axis), part(axis, rank)}, 0);
  return {c.emit1("Reshape", {x, target}, {{"allowzero", int64_t{1}}})};
}

// Refuse negative extents: ONNX's function would slice from the end.
Bindings upgrade_center_crop_pad(const Call& c) {
  const auto extents = known_ints(c.need(1));
  for (const int64_t extent : extents.value_or(Ints())) {
    if (extent >= 0) continue;
    c.fail("An image cannot be cropped to a negative extent.", "0 or more",
           fmt::format("{}", extent), "Export the model again.");
  }
  return c.as_is();
}

Bindings upgrade_pad(const Call& c) {
  const Value x = c.need(0);
  const Value fill = scalar(c.graph, c.attrs.real("value", 0), x.dtype());
  return {
      c.emit1("Pad", {x, c.ints(c.attrs.ints("pads")), fill}, without(c.attrs, {"pads", "value"}))};
}

Bindings upgrade_slice(const Call& c) {
  const Value axes = c.attrs.has("axes") ? c.ints(c.attrs.ints("axes")) : Value();
  return {c.emit1("Slice",
                  {c.need(0), c.ints(c.attrs.ints("starts")), c.ints(c.attrs.ints("ends")), axes},
                  without(c.attrs, {"starts", "ends", "axes"}))};
}

/// Joins the sizes of all pieces without a named output into one: a tiny file may ask for thousands
/// of pieces.
Ints join_unnamed(const Call& c, Ints sizes, size_t count) {
  int64_t rest = 0;
  for (size_t i = count; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || __builtin_add_overflow(rest, sizes[i], &rest)) {
      c.fail("The sizes of a Split are not valid.",
             "sizes that are not negative and add up to the extent", fmt::format("{}", sizes[i]),
             "Export the model again.");
    }
  }
  if (sizes.size() > count) {
    sizes.resize(count);
    sizes.push_back(rest);
  }
  return sizes;
}

/// `equal`: without sizes, all parts have the same length; otherwise the last part may be shorter.
Bindings split(const Call& c, bool equal) {
  const Value x = c.need(0);
  const int outputs = c.outputs();
  Attrs attrs = without(c.attrs, {"split", "num_outputs"});
  Value split = c.in(1);
  if (c.attrs.has("split")) split = c.ints(c.attrs.ints("split"));
  const auto sizes = known_ints(split);
  if (split) {
    if (sizes && sizes->size() != static_cast<size_t>(outputs)) {
      // Trailing outputs may be unnamed; then the sizes give the number of pieces.
      if (sizes->size() < static_cast<size_t>(outputs)) {
        c.fail("Split has more outputs than sizes.", counted(sizes->size(), "output"),
               fmt::format("{}", outputs), "Export the model again.");
      }
      const Value pieces = c.ints(join_unnamed(c, *sizes, static_cast<size_t>(outputs)));
      return bindings_of(c.emit("Split", {x, pieces}, attrs, outputs + 1));
    }
    return bindings_of(c.emit("Split", {x, split}, attrs, outputs));
  }
  const int64_t count = c.attrs.integer("num_outputs", outputs);
  if (count < outputs || count > 65'536) {
    c.fail("Split has a wrong number of outputs.", fmt::format("at least {}", outputs),
           fmt::format("num_outputs {}", count), "Export the model again.");
  }
  int64_t axis = c.integer("axis");
  if (x.type().shape) {
    if (axis < 0) axis += x.rank();
    if (axis >= 0 && axis < x.rank() && x.shape()[static_cast<size_t>(axis)].known()) {
      const int64_t extent = x.shape()[static_cast<size_t>(axis)].value();
      const int64_t piece = extent / count + (extent % count == 0 ? 0 : 1);
      if (equal && extent % count != 0) {
        c.fail("Split cannot cut an axis into equal parts.", fmt::format("a multiple of {}", count),
               fmt::format("{}", extent), "Give the sizes (`split`).");
      }
      Ints pieces;
      for (int64_t i = 0, left = extent; i < count; ++i, left -= pieces.back()) {
        pieces.push_back(std::min(piece, left));
      }
      pieces = join_unnamed(c, std::move(pieces), static_cast<size_t>(outputs));
      return bindings_of(
          c.emit("Split", {x, c.ints(pieces)}, attrs, static_cast<int>(pieces.size())));
    }
  }
  if (count > outputs + 1024) {
    c.fail("Split has too many outputs without a name.", fmt::format("at most {}", outputs + 1024),
           fmt::format("num_outputs {}", count), "Give the sizes (`split`), or fix the axis.");
  }
  attrs.set("num_outputs", count);
  return bindings_of(c.emit("Split", {x}, attrs, static_cast<int>(count)));
}

Bindings upgrade_equal_split(const Call& c) { return split(c, true); }
Bindings upgrade_split(const Call& c) { return split(c, false); }

Bindings upgrade_top_k(const Call& c) {
  return bindings_of(
      c.emit("TopK", {c.need(0), c.ints({c.attrs.integer("k", 0)})}, without(c.attrs, {"k"}), 2));
}

// These opsets had only the asymmetric transformation, with nearest rounding down.
Bindings upgrade_asymmetric_resize(const Call& c) {
  Attrs attrs = c.attrs;
  attrs.set("coordinate_transformation_mode", std::string("asymmetric"));
  attrs.set("nearest_mode", std::string("floor"));
  return {c.emit1("Resize", {c.need(0), Value(), c.need(1)}, attrs)};
}

Bindings upgrade_resize(const Call& c) {
  const Value x = c.need(0);
  Attrs attrs = c.attrs;
  if (attrs.string("coordinate_transformation_mode", "") == "tf_half_pixel_for_nn") {
    c.fail("This mode of resizing was removed from ONNX.", "another coordinate_transformation_mode",
           "tf_half_pixel_for_nn", "Export with opset 13 or newer.");
  }
  // Opset 11 wrote an empty tensor for an absent input.
  auto present = [&](size_t i) {
    const Value v = c.in(i);
    const bool empty = v && v.role() == Role::constant && v.tensor()->size() == 0;
    return empty ? Value() : v;
  };
  return {c.emit1("Resize", {x, present(1), present(2), present(3)}, attrs)};
}

Bindings upgrade_upsample(const Call& c) {
  const Value x = c.need(0);
  Value scales = c.in(1);
  if (const Attr* attr = c.attrs.find("scales")) {
    std::vector<float> values;
    if (const auto* floats = std::get_if<Floats>(attr))
      values.assign(floats->begin(), floats->end());
    const auto count = static_cast<int64_t>(values.size());
    scales = c.graph.add_constant(Tensor::from(values, {count}), c.name + "/scales");
  }
  return {c.emit1("Resize", {x, Value(), scales},
                  {{"mode", c.attrs.string("mode", "nearest")},
                   {"coordinate_transformation_mode", std::string("asymmetric")},
                   {"nearest_mode", std::string("floor")}})};
}

Bindings upgrade_scatter(const Call& c) {
  return {c.emit1("ScatterElements", {c.need(0), c.need(1), c.need(2)}, c.attrs)};
}

Bindings upgrade_dft(const Call& c) {
  const Tensor axis = Tensor::scalar(c.attrs.integer("axis", 1));
  return {c.emit1("DFT", {c.need(0), c.in(1), c.graph.add_constant(axis, c.name + "/axis")},
                  without(c.attrs, {"axis"}))};
}

}  // namespace steep
