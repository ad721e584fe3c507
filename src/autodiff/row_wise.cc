#include "autodiff/row_wise.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
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

/// Whether the rows of x correspond to the rows of the result.
bool has_rows_of(Node n, Value x) {
  return has_rows(x) && provably_equal_leads(x.shape(), n.output(0).shape());
}

bool has_one_axis(Value x) { return !x || (x.type().shape && x.rank() <= 1); }

bool multiplies_by_matrix(Node n) {
  const Value b = n.input(1);
  return has_rows_of(n, n.input(0)) && b.type().shape && b.rank() == 2;
}

bool multiplies_and_adds_row(Node n) {
  return multiplies_by_matrix(n) && integer_of(n, "transA") == 0 && has_one_axis(n.input(2));
}

bool normalises_last_axis(Node n) {
  const int64_t axis = integer_of(n, "axis");
  return has_rows_of(n, n.input(0)) && (axis == -1 || axis == n.output(0).rank() - 1) &&
         has_one_axis(n.input(1)) && has_one_axis(n.input(2));
}

bool keeps_length(Node n) {
  return has_rows(n.input(0)) &&
         provably_equal(n.input(0).shape().back(), n.output(0).shape().back());
}

bool always(Node /*n*/) { return true; }

/// An operator whose result row i depends on row i of operand 0, and on all of the other operands.
struct RowWise {
  std::string_view op;
  bool (*does)(Node n);  ///< whether this node does so
  bool keeps = false;    ///< at most changes the shape of rows
  bool product = false;  ///< is_product()
  /// The operator that computes some rows. Its operands: the rows, the row numbers and all extents
  /// after operand 0. Empty: the same operator.
  std::string_view of_some{};
};

constexpr RowWise kRowWise[] = {
    {.op = "MatMul", .does = multiplies_by_matrix, .product = true},
    {.op = "Gemm", .does = multiplies_and_adds_row, .product = true},
    {.op = "LayerNormalization", .does = normalises_last_axis},
    {.op = "RMSNormalization", .does = normalises_last_axis},
    {.op = "Identity", .does = always, .keeps = true},
    {.op = "Reshape", .does = keeps_length, .keeps = true},
    {.op = "Flatten", .does = keeps_length, .keeps = true},
    {.op = "Slice", .does = [](Node n) { return has_rows(n.input(0)) && cut_axes(n); }},
    {.op = "steep.Dropout", .does = always, .of_some = "steep.DropoutRows"},
};

/// Null for other operators.
const RowWise* find_row_wise(Node n) {
  const auto* found = std::find_if(std::begin(kRowWise), std::end(kRowWise),
                                   [&](const RowWise& row) { return row.op == n.op(); });
  return found == std::end(kRowWise) ? nullptr : found;
}

/// For each operand of an elementwise operator: whether it has the result's rows or one row for
/// all.
std::optional<std::vector<RowOperand>> by_elements(Node n) {
  const OpDef* def = find_op(n.op());
  if (def == nullptr || !def->elementwise || def->seed >= 0) return {};
  std::vector<RowOperand> operands(static_cast<size_t>(n.input_count()), RowOperand::whole);
  bool any = false;
  for (int i = 0; i < n.input_count(); ++i) {
    if (has_one_axis(n.input(i))) continue;
    if (!has_rows_of(n, n.input(i))) return {};
    operands[static_cast<size_t>(i)] = RowOperand::rows;
    any = true;
  }
  return any ? std::optional(operands) : std::nullopt;
}

}  // namespace

bool has_rows(Value v) { return v && v.type().shape && v.rank() >= 2; }

bool keeps_rows(Node n) {
  const RowWise* row = find_row_wise(n);
  return row != nullptr && row->keeps && row->does(n);
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
  if (!has_rows(n.output(0))) return {};
  const RowWise* row = find_row_wise(n);
  if (row == nullptr) return by_elements(n);
  if (!row->does(n)) return {};
  std::vector<RowOperand> operands(static_cast<size_t>(n.input_count()), RowOperand::whole);
  operands[0] = RowOperand::rows;
  return operands;
}

bool is_product(Node n) {
  const RowWise* row = find_row_wise(n);
  return row != nullptr && row->product;
}

bool needs_leads(Node n) {
  const RowWise* row = find_row_wise(n);
  return row != nullptr && !row->of_some.empty();
}

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
  std::string op = n.op();
  if (rows && needs_leads(n)) {
    op = find_row_wise(n)->of_some;
    inputs.insert(inputs.begin() + 1, {rows, leads});
  }
  const Value y = apply_n(op, inputs, n.output_count(), std::move(attrs))[0];
  g.place_like(y.producer(), n);
  return y;
}

}  // namespace steep
