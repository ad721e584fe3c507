// Derivatives of products that are exact when factors are zero, including higher derivatives.
#pragma once

#include <functional>

#include "ops/build.h"

namespace steep {

/// Summary of the factors of products.
struct Factors {
  Value product;          ///< of the nonzero factors
  Value zeros;            ///< the number of zero factors
  Value zero_sum;         ///< Σ of the zero factors: 0, but its gradient is not 0
  Value zero_square_sum;  ///< Σ of the squares of the zero factors
};

/// `combine(op, of)` reduces of(factor) over all factors of each product with `op`, "mul" or "add".
Factors factors_of(
    const std::function<Value(const char* op, const std::function<Value(Value)>& of)>& combine);

/// Applies `read` to each member.
Factors read_factors(const Factors& f, const std::function<Value(Value)>& read);

/// The product of all factors except x, with `f` broadcast to x. May be differentiated two more
/// times: as a function of the zero factors it is their elementary symmetric polynomial, up to
/// degree two.
Value product_without(Value x, const Factors& f);

}  // namespace steep
