// steep.SetPart(whole, part){axis, start} → whole, in which part replaces as many indices of
// `axis`, from `start` on. Its kernel writes in place.
#include "ops/build.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

struct Range {
  int64_t axis, start, end;
};

/// REQUIRES: a known extent of the part.
Range range_of(Node n) {
  const int64_t axis = normal_axis(n, integer_of(n, "axis"), n.input(0).rank());
  const int64_t start = integer_of(n, "start");
  return {axis, start, start + n.input(1).shape()[static_cast<size_t>(axis)].value()};
}

Value indices(Value x, int64_t axis, int64_t begin, int64_t end) {
  Graph& g = x.graph();
  return apply("Slice", {x, ints(g, {begin}), ints(g, {end}), ints(g, {axis})});
}

Grads set_part_vjp(Node n, const Grads& dy) {
  const Range r = range_of(n);
  return {apply("steep.SetPart", {dy[0], zeros_like(n.input(1))}, n.attrs()),
          indices(dy[0], r.axis, r.start, r.end)};
}

std::vector<Type> set_part_infer(Node n) { return {n.input(0).type()}; }

std::vector<Value> set_part_decompose(Node n) {
  const Range r = range_of(n);
  const Value whole = n.input(0);
  return {concat(
      {indices(whole, r.axis, 0, r.start), n.input(1), indices(whole, r.axis, r.end, INT64_MAX)},
      r.axis)};
}

}  // namespace

extern const OpDef kSteepSetPart = {.name = "steep.SetPart",
                                    .attributes = {{"axis", 0}, {"start", 0}},
                                    .vjp = set_part_vjp,
                                    .infer = set_part_infer,
                                    .decompose = set_part_decompose};

}  // namespace steep
