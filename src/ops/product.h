// Derivatives of products that stay right when factors are zero.
#pragma once

#include "ops/build.h"

namespace steep {

/// 1 where x is 0, else x.
Value nonzero_or_one(Value x);
/// 1 where x is 0, else 0; of x's dtype.
Value is_zero(Value x);

/// The product of all factors but x: `product` is that of the factors other than zero, `zeros` the
/// number of zero factors. Both broadcast to x.
Value product_without(Value x, Value product, Value zeros);

}  // namespace steep
