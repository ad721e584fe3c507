#include "ops/simplify.h"

#include <cmath>
#include <optional>

namespace steep {
namespace {

/// Whether `v` is this number, with this sign: x + 0.0 turns -0.0 into 0.0, and x + -0.0 does not.
bool is_number(Value v, double number) {
  if (!v || !is_float(v.dtype())) return false;
  const std::optional<double> found = scalar_constant(v);
  return found == number && std::signbit(*found) == std::signbit(number);
}

}  // namespace

bool provably_same_type(Value a, Value b) {
  return a.dtype() == b.dtype() && a.type().shape && b.type().shape &&
         provably_equal(*a.type().shape, *b.type().shape);
}

Value input_if_same_type(Node n) {
  return provably_same_type(n.input(0), n.output(0)) ? n.input(0) : Value();
}

Value input_if_only_one(Node n) { return n.input_count() == 1 ? n.input(0) : Value(); }

Value beside_neutral(Node n, double neutral, bool commutes) {
  const Value a = n.input(0), b = n.input(1), y = n.output(0);
  if (is_number(b, neutral) && provably_same_type(a, y)) return a;
  return commutes && is_number(a, neutral) && provably_same_type(b, y) ? b : Value();
}

}  // namespace steep
