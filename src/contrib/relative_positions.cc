// An attention bias by the distance between query and key: near distances have their own entry, far
// ones share buckets that grow with the distance.
#include <fmt/format.h>

#include <cmath>

#include "contrib/contrib.h"
#include "runtime/counted.h"

namespace steep {
namespace {

// The shape of the table is [buckets, heads], but its elements are stored head by head.
Results relative_position_bias(const ContribCall& c, ContribBody& f) {
  if (c.rank(0) != 2) {
    c.fail("An input has another rank.", "bias_table of shape [buckets, heads]",
           to_string(c.inputs[0]), "Export the model again.");
  }
  const int64_t all = c.extent(0, 0), heads = c.extent(0, 1);
  const int64_t distance = c.integer("max_distance");
  const bool both = c.flag("is_bidirectional");
  const int64_t buckets = both ? all / 2 : all, exact = buckets / 2;
  if (exact < 1 || distance <= exact || distance > kFar) {
    c.fail(
        "An attribute is out of range.",
        "at least 4 buckets where is_bidirectional, otherwise 2, and a max_distance of more than "
        "half of them",
        fmt::format("{}, max_distance = {}", counted(all, "bucket"), distance),
        "Export the model again.");
  }
  f.ints("table_shape", {heads, all});
  f.ints("down", {1});
  f.ints("front", {0});
  f.add(fmt::format(
      "zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()"
      "  exact = Constant <value_int = {0}> ()  top = Constant <value_int = {1}> ()"
      "  queries = Squeeze (query_length)  keys = Squeeze (key_length)"
      "  rows = Range (zero, queries, one)  columns = Range (zero, keys, one)"
      "  row = Unsqueeze (rows, down)  ahead = Sub (columns, row)  far = Abs (ahead)"
      "  some = Max (far, one)  real = Cast <to = 1> (some)  unit = Cast <to = 1> (exact)"
      "  times = Div (real, unit)  level = Log (times)",
      exact, buckets - 1));
  f.scalar("span", std::log(static_cast<float>(distance) / static_cast<float>(exact)), "unit");
  f.scalar("room", static_cast<double>(buckets - exact), "unit");
  f.add(
      "share = Div (level, span)  steps = Mul (share, room)  whole = Cast <to = 7> (steps)"
      "  beyond = Add (exact, whole)  most = Min (beyond, top)  near = Less (far, exact)"
      "  bucket = Where (near, far, most)");
  std::string index = "bucket";
  if (both) {
    f.add(
        fmt::format("half = Constant <value_int = {}> ()  later = Greater (ahead, zero)"
                    "  shift = Where (later, half, zero)  place = Add (bucket, shift)",
                    buckets));
    index = "place";
  }
  f.add(
      fmt::format("table = Reshape (bias_table, table_shape)"
                  "  chosen = Gather <axis = 1> (table, {})  y = Unsqueeze (chosen, front)",
                  index));
  return {"y"};
}

}  // namespace

extern const ContribOp kContribRelativePositionBias = {
    .name = "RelativePositionBias",
    .inputs = {"bias_table", "query_length", "key_length"},
    .attributes = {{"is_bidirectional", 0}, {"max_distance", 0}},
    .build = relative_position_bias};

}  // namespace steep
