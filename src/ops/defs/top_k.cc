// The k largest (or smallest) elements along `axis`, and their indices. Of equal elements TopK
// picks the first; steep.TopK(x){k, axis, largest, sorted} → values, indices picks those that
// PyTorch's topk picks. NaN counts as the largest number.
#include "ops/build.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

/// For both operators: input 0 holds the elements.
Grads top_k_vjp(Node n, const Grads& dy) {
  if (!dy[0]) return {};
  return {apply("ScatterElements", {zeros_like(n.input(0)), n.output(1), dy[0]},
                {{"axis", integer_of(n, "axis")}})};
}

std::vector<Type> steep_top_k_infer(Node n) {
  require_operands(n, 1, 2);
  if (n.output_count() != 2)
    throw_shape_error(n, "A node lacks an output.", "values and indices", "one output");
  const Value x = n.input(0);
  if (!x || x.type().kind != Kind::tensor || x.dtype() == DType::boolean) {
    throw_shape_error(n, "An input of a numeric operator is not numeric.", "a tensor of numbers",
                      x ? to_string(x.type()) : "nothing");
  }
  std::optional<Shape> shape = shape_if_known(x);
  if (shape) {
    const auto rank = static_cast<int64_t>(shape->size());
    const int64_t axis = integer_of(n, "axis"), k = integer_of(n, "k");
    if (axis < -rank || axis >= rank)
      throw_shape_error(n, "The axis is out of range.", "one of the operand's",
                        std::to_string(axis));
    Dim& extent = (*shape)[static_cast<size_t>(axis < 0 ? axis + rank : axis)];
    if (k < 0 || (extent.known() && k > extent.value()))
      throw_shape_error(n, "k is out of range.", "at most the extent of the axis",
                        std::to_string(k));
    extent = k;
  }
  return {{x.dtype(), shape}, {DType::i64, shape}};
}

std::vector<Value> steep_top_k_decompose(Node n) {
  Attrs attrs = n.attrs();
  attrs.erase("k");
  return apply_n("TopK", std::vector{n.input(0), ints(n.graph(), {integer_of(n, "k")})}, 2, attrs);
}

}  // namespace

extern const OpDef kTopK = {.name = "TopK",
                            .attributes = {{"axis", -1}, {"largest", 1}, {"sorted", 1}},
                            .ranks = ". 1",
                            .vjp = top_k_vjp};

extern const OpDef kSteepTopK = {
    .name = "steep.TopK",
    .in_files = true,
    .attributes = {{"k", 1}, {"axis", -1}, {"largest", 1}, {"sorted", 1}},
    .vjp = top_k_vjp,
    .infer = steep_top_k_infer,
    .decompose = steep_top_k_decompose};

}  // namespace steep
