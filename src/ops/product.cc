#include "ops/product.h"

namespace steep {
namespace {

Value nonzero_or_one(Value x) { return where(equal(x, 0), 1, x); }

Value is_zero(Value x) { return cast_like(equal(x, 0), x); }

Value zero_part(Value x) { return where(equal(x, 0), x, 0); }

/// Clips x to finite values, so that its product with 0 is 0.
Value bounded(Value x) {
  const double largest = x.dtype() == DType::f64    ? 0x1.fffffffffffffp1023
                         : x.dtype() == DType::f32  ? 0x1.fffffep127
                         : x.dtype() == DType::bf16 ? 0x1.fep127
                                                    : 65504;
  Graph& g = x.graph();
  return apply("Clip", {x, scalar(g, -largest, x.dtype()), scalar(g, largest, x.dtype())});
}

}  // namespace

Factors factors_of(
    const std::function<Value(const char* op, const std::function<Value(Value)>& of)>& combine) {
  return {combine("mul", nonzero_or_one), combine("add", is_zero), combine("add", zero_part),
          combine("add", [](Value x) { return zero_part(x) * zero_part(x); })};
}

Factors read_factors(const Factors& f, const std::function<Value(Value)>& read) {
  return {read(f.product), read(f.zeros), read(f.zero_sum), read(f.zero_square_sum)};
}

Value product_without(Value x, const Factors& f) {
  // Leave x out of the sums: x may itself be zero.
  Value zeros = f.zeros - is_zero(x);
  Value first = f.zero_sum - zero_part(x);
  Value squares = f.zero_square_sum - zero_part(x) * zero_part(x);
  Value rest = f.product / nonzero_or_one(x);
  Value pairs = where(equal(zeros, 2), (first * first - squares) * 0.5, 0);
  Value vanishing = where(equal(zeros, 1), first, pairs);
  return where(equal(zeros, 0), rest, bounded(rest) * vanishing);
}

}  // namespace steep
