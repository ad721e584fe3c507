// Derivatives of products that stay right when factors are zero, and so do derivatives of these.
#pragma once

#include <functional>

#include "ops/build.h"

namespace steep {

/// What is known of the factors of products.
struct Factors {
  Value product;          ///< of the factors other than zero
  Value zeros;            ///< the number of zero factors
  Value zero_sum;         ///< Σ of the zero factors: 0, but its gradient is not
  Value zero_square_sum;  ///< Σ of their squares
};

/// `combine(op, of)` combines of(factor) for all factors of each product by `op`, "mul" or "add".
Factors factors_of(
    const std::function<Value(const char* op, const std::function<Value(Value)>& of)>& combine);

/// What `read` makes of each of them.
Factors read_factors(const Factors& f, const std::function<Value(Value)>& read);

/// The product of all factors but x, with `f` broadcast to x. It may be differentiated twice more:
/// as a function of the zero factors it is their elementary symmetric polynomial, up to the second.
Value product_without(Value x, const Factors& f);

}  // namespace steep
