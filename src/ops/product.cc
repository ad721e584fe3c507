#include "ops/product.h"

namespace steep {

Value nonzero_or_one(Value x) { return where(equal(x, 0), 1, x); }

Value is_zero(Value x) { return cast_like(equal(x, 0), x); }

Value product_without(Value x, Value product, Value zeros) {
  Value if_zero = where(equal(zeros, 1), product, 0);
  Value if_nonzero = where(equal(zeros, 0), product, 0) / nonzero_or_one(x);
  return where(equal(x, 0), if_zero, if_nonzero);
}

}  // namespace steep
