#include "passes/simplify.h"

#include <string_view>

#include "ops/build.h"

namespace steep {
namespace {

bool same_type(Value a, Value b) {
  return a.dtype() == b.dtype() && a.type().shape && b.type().shape &&
         provably_equal(*a.type().shape, *b.type().shape);
}

bool is_scalar_constant(Value v, double wanted) {
  return v && is_float(v.dtype()) && scalar_constant(v) == wanted;
}

bool is_identity_perm(const Ints& perm) {
  for (size_t i = 0; i < perm.size(); ++i) {
    if (perm[i] != static_cast<int64_t>(i)) return false;
  }
  return !perm.empty();
}

}  // namespace

Value simplify(Node n) {
  const std::string& op = n.op();
  Value x = n.input(0), y = n.output(0);
  if (!x || !y) return {};
  if (op == "Identity") return x;
  if (op == "Reshape" || op == "Expand" || op == "steep.SumTo" || op == "Cast" ||
      op == "CastLike" || op == "Squeeze" || op == "Unsqueeze" || op == "Flatten") {
    return same_type(x, y) ? x : Value();
  }
  if (op == "Transpose") return is_identity_perm(n.attrs().ints("perm")) ? x : Value();
  if ((op == "Sum" || op == "Concat" || op == "Mean") && n.input_count() == 1) return x;
  if (op == "Where" && x.role() == Role::constant && x.tensor()->size() == 1) {
    Value chosen = n.input(*x.tensor()->data<uint8_t>() != 0 ? 1 : 2);
    return same_type(chosen, y) ? chosen : Value();
  }
  if (op == "Mul" || op == "Div") {
    if (is_scalar_constant(n.input(1), 1) && same_type(x, y)) return x;
    if (op == "Mul" && is_scalar_constant(x, 1) && same_type(n.input(1), y)) return n.input(1);
  }
  if (op == "Add" || op == "Sub") {
    if (is_scalar_constant(n.input(1), 0) && same_type(x, y)) return x;
    if (op == "Add" && is_scalar_constant(x, 0) && same_type(n.input(1), y)) return n.input(1);
  }
  return {};
}

}  // namespace steep
