// steep.MatMul(a, b, bias?, addend?){perm_a, perm_b, perm_y, alpha, activation, dtype}: a matrix
// product with the operations around it that a kernel can fuse; `addend` has the result's shape and
// dtype and is added last. Made by passes. The attribute `dtype` is that of the result, by default
// that of `a`. With another dtype, sums are computed in the wider dtype, which the bias may have
// too.
#include "ops/build.h"
#include "ops/steep_types.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

Shape permuted(Node n, const Shape& shape, const Ints& perm) {
  if (perm.empty()) return shape;
  if (perm.size() != shape.size()) {
    throw_shape_error(n, "A permutation does not match its operand.",
                      counted(perm.size(), "dimension"), to_string(shape));
  }
  Shape result;
  for (int64_t axis : perm) result.push_back(shape.at(static_cast<size_t>(axis)));
  return result;
}

std::vector<Type> steep_matmul_infer(Node n) {
  const Attrs& attrs = n.attrs();
  Type type{result_dtype(n, n.input(0).dtype()), {}};
  if (!shape_if_known(n.input(0)) || !shape_if_known(n.input(1))) return {type};
  const Shape a = permuted(n, n.input(0).shape(), attrs.ints("perm_a"));
  const Shape b = permuted(n, n.input(1).shape(), attrs.ints("perm_b"));
  const bool matrices = a.size() >= 2 && b.size() >= 2;
  if (!matrices || (a.back().known() && b[b.size() - 2].known() &&
                    a.back().value() != b[b.size() - 2].value())) {
    throw_shape_error(n, "The operands of a matrix product do not fit.",
                      "(.., m, k) and (.., k, n)", to_string(a) + " and " + to_string(b));
  }
  Shape y = broadcast(n, Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  y.push_back(a[a.size() - 2]);
  y.push_back(b.back());
  type.shape = permuted(n, y, attrs.ints("perm_y"));
  return {type};
}

Value permuted(Value x, const Ints& perm) { return perm.empty() ? x : transpose(x, perm); }

std::vector<Value> steep_matmul_decompose(Node n) {
  const Attrs& attrs = n.attrs();
  const bool mixed = attrs.has("dtype");
  auto wide = [mixed](Value x) { return mixed && x ? cast(x, DType::f32) : x; };
  Value y = matmul(permuted(wide(n.input(0)), attrs.ints("perm_a")),
                   permuted(wide(n.input(1)), attrs.ints("perm_b")));
  if (const double alpha = real_of(n, "alpha"); alpha != 1) y = y * alpha;
  if (n.input(2)) y = y + wide(n.input(2));
  if (const std::string f = text_of(n, "activation"); !f.empty()) y = apply(f, {y});
  y = permuted(cast(y, n.output(0).dtype()), attrs.ints("perm_y"));
  return {n.input(3) ? y + n.input(3) : y};
}

}  // namespace

extern const OpDef kSteepMatMul = {.name = "steep.MatMul",
                                   .attributes = {{"activation", ""}, {"alpha", 1.0}},
                                   .infer = steep_matmul_infer,
                                   .decompose = steep_matmul_decompose};

}  // namespace steep
