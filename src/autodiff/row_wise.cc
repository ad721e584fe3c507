#include "autodiff/row_wise.h"

#include <algorithm>
#include <utility>

#include "ops/build.h"

namespace steep {
namespace {

bool provably_equal_leads(const Shape& a, const Shape& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i + 1 < a.size(); ++i) {
    if (!provably_equal(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace

bool has_rows(Value v) { return v && v.type().shape && v.rank() >= 2; }

bool keeps_rows(Node n) {
  if (n.op() == "Identity") return true;
  if (n.op() != "Reshape" && n.op() != "Flatten") return false;
  return has_rows(n.input(0)) &&
         provably_equal(n.input(0).shape().back(), n.output(0).shape().back());
}

std::optional<Ints> cut_axes(Node n) {
  if (n.op() != "Slice" || constant(n.input(3)) == nullptr) return {};
  if (n.input(4)) {
    const Tensor* steps = constant(n.input(4));
    if (steps == nullptr) return {};
    const Ints values = steps->to_ints();
    if (std::any_of(values.begin(), values.end(), [](int64_t s) { return s < 1; })) return {};
  }
  Ints axes = n.input(3).tensor()->to_ints();
  const int64_t rank = n.input(0).rank();
  for (int64_t& axis : axes) {
    axis = normal_axis(n, axis, rank);
    if (axis == rank - 1) return {};
  }
  return axes;
}

std::optional<std::vector<RowOperand>> by_rows(Node n) {
  const Value y = n.output(0);
  if (!has_rows(y)) return {};
  std::vector<RowOperand> operands(static_cast<size_t>(n.input_count()), RowOperand::whole);
  const auto of_rows = [&](Value x) {
    return has_rows(x) && provably_equal_leads(x.shape(), y.shape());
  };
  const auto of_one_axis = [](Value x) { return !x || (x.type().shape && x.rank() <= 1); };
  const std::string& op = n.op();
  if (op == "MatMul" || op == "Gemm") {
    const Value b = n.input(1);
    if (!of_rows(n.input(0)) || !b.type().shape || b.rank() != 2) return {};
    if (op == "Gemm" && (integer_of(n, "transA") != 0 || !of_one_axis(n.input(2)))) return {};
    operands[0] = RowOperand::rows;
    return operands;
  }
  if (op == "LayerNormalization" || op == "RMSNormalization") {
    const int64_t axis = integer_of(n, "axis");
    if (!of_rows(n.input(0)) || (axis != -1 && axis != y.rank() - 1)) return {};
    if (!of_one_axis(n.input(1)) || !of_one_axis(n.input(2))) return {};
    operands[0] = RowOperand::rows;
    return operands;
  }
  if (keeps_rows(n) || (has_rows(n.input(0)) && cut_axes(n))) {
    operands[0] = RowOperand::rows;
    return operands;
  }
  if (op == "steep.Dropout") {
    operands[0] = RowOperand::rows;
    return operands;
  }
  const OpDef* def = find_op(op);
  if (def == nullptr || !def->elementwise || def->seed >= 0) return {};
  bool any = false;
  for (int i = 0; i < n.input_count(); ++i) {
    if (of_one_axis(n.input(i))) continue;
    if (!of_rows(n.input(i))) return {};
    operands[static_cast<size_t>(i)] = RowOperand::rows;
    any = true;
  }
  return any ? std::optional(operands) : std::nullopt;
}

bool is_product(Node n) { return n.op() == "MatMul" || n.op() == "Gemm"; }

Value write_for_rows(Node n, Value rows, Value leads, const std::function<Value(Value)>& take) {
  const auto operands = by_rows(n);
  Graph& g = n.graph();
  std::vector<Value> inputs;
  for (int i = 0; i < n.input_count(); ++i) {
    const bool some = operands->at(static_cast<size_t>(i)) == RowOperand::rows;
    inputs.push_back(some ? take(n.input(i)) : n.input(i));
  }
  Attrs attrs = n.attrs();
  if (attrs.has("axis")) attrs.set("axis", int64_t{-1});
  const Graph::Scope scope(g, n.phase(), n.name());
  const bool drops = rows && n.op() == "steep.Dropout";
  if (drops) inputs = {inputs[0], rows, leads, n.input(1)};
  const std::string op = drops ? "steep.DropoutRows" : n.op();
  const Value y = apply_n(op, inputs, n.output_count(), std::move(attrs))[0];
  g.place_like(y.producer(), n);
  return y;
}

}  // namespace steep
