// Products of groups of rows, each with a matrix of its own, as the layers of routed experts are.
// The groups are adjacent; how many rows each has is known only when the node runs.
#include <fmt/format.h>

#include "ops/build.h"
#include "ops/steep_types.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Throws ShapeError unless the node reads two float tensors of one dtype and of the given ranks,
/// and a vector of int64.
void require_groups(Node n, int64_t rank_a, int64_t rank_b) {
  require_operands(n, 3, 1);
  const Value a = n.input(0), b = n.input(1), offsets = n.input(2);
  if (!a || !b || !is_float(a.dtype()) || a.dtype() != b.dtype()) {
    throw_shape_error(n, "The factors of a grouped product are not of one float type.",
                      "two tensors of one float type",
                      fmt::format("{} and {}", a ? to_string(a.type()) : "nothing",
                                  b ? to_string(b.type()) : "nothing"));
  }
  if (!offsets || offsets.dtype() != DType::i64) {
    throw_shape_error(n, "The offsets of a grouped product are of the wrong type.",
                      "a vector of int64", offsets ? to_string(offsets.type()) : "nothing");
  }
  require_rank(n, 0, rank_a);
  require_rank(n, 1, rank_b);
  require_rank(n, 2, 1);
}

/// The extent of both dimensions, of which one may be unknown. Throws ShapeError if they differ.
Dim same_extent(Node n, const Dim& a, const Dim& b) {
  if (a.known() && b.known() && a.value() != b.value()) {
    throw_shape_error(n, "The extents of a grouped product do not fit.",
                      "as many terms, rows or groups in both operands",
                      fmt::format("{} and {}", a.value(), b.value()));
  }
  return a.known() ? a : b;
}

std::vector<Type> grouped_matmul_infer(Node n) {
  require_groups(n, 2, 3);
  const auto &x = shape_if_known(n.input(0)), &w = shape_if_known(n.input(1));
  const auto& offsets = shape_if_known(n.input(2));
  const bool transposed = integer_of(n, "transposed") != 0;
  const DType dtype = n.input(0).dtype();
  if (!x || !w) return {{dtype, std::nullopt}};
  same_extent(n, (*x)[1], (*w)[transposed ? 2 : 1]);
  if (offsets) same_extent(n, (*w)[0], (*offsets)[0]);
  return {{dtype, Shape{(*x)[0], (*w)[transposed ? 1 : 2]}}};
}

std::vector<Type> grouped_outer_product_infer(Node n) {
  require_groups(n, 2, 2);
  const auto &a = shape_if_known(n.input(0)), &b = shape_if_known(n.input(1));
  const auto& offsets = shape_if_known(n.input(2));
  const DType dtype = n.input(0).dtype();
  if (!a || !b || !offsets) return {{dtype, std::nullopt}};
  same_extent(n, (*a)[0], (*b)[0]);
  return {{dtype, Shape{(*offsets)[0], (*a)[1], (*b)[1]}}};
}

Value grouped_matmul(Value x, Value w, Value offsets, bool transposed) {
  return apply("steep.GroupedMatMul", {x, w, offsets}, {{"transposed", int64_t{transposed}}});
}

Value grouped_outer_product(Value a, Value b, Value offsets) {
  return apply("steep.GroupedOuterProduct", {a, b, offsets});
}

Grads grouped_matmul_vjp(Node n, const Grads& dy) {
  const Value x = n.input(0), w = n.input(1), offsets = n.input(2);
  const bool transposed = integer_of(n, "transposed") != 0;
  return {grouped_matmul(dy[0], w, offsets, !transposed),
          transposed ? grouped_outer_product(dy[0], x, offsets)
                     : grouped_outer_product(x, dy[0], offsets)};
}

Grads grouped_outer_product_vjp(Node n, const Grads& dy) {
  const Value a = n.input(0), b = n.input(1), offsets = n.input(2);
  return {grouped_matmul(b, dy[0], offsets, true), grouped_matmul(a, dy[0], offsets, false)};
}

/// The rows of x from `begin` to `end`, both int64[1].
Value rows_of(Value x, Value begin, Value end) {
  return apply("Slice", {x, begin, end, ints(x.graph(), {0})});
}

/// The number of groups, which must be known for a node per group.
int64_t group_count(Node n) {
  const auto& offsets = shape_if_known(n.input(2));
  if (offsets && (*offsets)[0].known()) return (*offsets)[0].value();
  throw ModelError({.what = "The number of groups must be known for the export.",
                    .node = n.name(),
                    .op = n.op(),
                    .expected = "offsets of a known extent",
                    .received = to_string(n.input(2).type()),
                    .remedy = "Give the offsets a fixed extent in the model."});
}

/// Calls product(g, begin, end) for each group; returns the results, and where the last one ends.
template <typename F>
std::vector<Value> for_groups(Node n, F&& product, Value* end) {
  std::vector<Value> parts;
  Graph& graph = n.graph();
  Value begin = ints(graph, {0});
  for (int64_t g = 0, groups = group_count(n); g < groups; ++g) {
    const Value next = rows_of(n.input(2), ints(graph, {g}), ints(graph, {g + 1}));
    parts.push_back(product(g, begin, next));
    begin = next;
  }
  *end = begin;
  return parts;
}

std::vector<Value> grouped_matmul_in_parts(Node n) {
  const Value x = n.input(0), w = n.input(1);
  const bool transposed = integer_of(n, "transposed") != 0;
  auto product = [&](int64_t g, Value begin, Value end) {
    const Value matrix =
        apply("Gather", {w, scalar(n.graph(), static_cast<double>(g), DType::i64)});
    return matmul(rows_of(x, begin, end), transposed ? swap_last(matrix) : matrix);
  };
  Value end;
  std::vector<Value> parts = for_groups(n, product, &end);
  const Value shapes[] = {shape_of(x), shape_of(w)};
  const Value rows = apply("Gather", {shapes[0], ints(n.graph(), {0})});
  const Value columns = apply("Gather", {shapes[1], ints(n.graph(), {transposed ? 1 : 2})});
  parts.push_back(
      apply("Expand", {scalar(n.graph(), 0, x.dtype()), concat({rows - end, columns}, 0)}));
  return {concat(parts, 0)};
}

std::vector<Value> grouped_outer_product_in_parts(Node n) {
  auto product = [&](int64_t, Value begin, Value end) {
    const Value a = rows_of(n.input(0), begin, end), b = rows_of(n.input(1), begin, end);
    return unsqueeze(matmul(swap_last(a), b), {0});
  };
  Value end;
  return {concat(for_groups(n, product, &end), 0)};
}

}  // namespace

/// steep.GroupedMatMul(x, w, offsets): x [rows, k], w [groups, k, n], or [groups, n, k] with
/// `transposed`, offsets int64[groups] → y [rows, n]. Group g has the rows from offsets[g - 1] (0
/// for the first group) to offsets[g], which are multiplied by w[g]; rows after the last group give
/// 0. A DataError if the offsets descend, or exceed the rows.
extern const OpDef kSteepGroupedMatMul = {.name = "steep.GroupedMatMul",
                                          .in_files = true,
                                          .attributes = {{"transposed", 0}},
                                          .vjp = grouped_matmul_vjp,
                                          .infer = grouped_matmul_infer,
                                          .export_decomposition = grouped_matmul_in_parts};

/// steep.GroupedOuterProduct(a, b, offsets): a [rows, m], b [rows, n] → y [groups, m, n], where
/// y[g] is aᵀ b of the rows of group g; 0 for a group without rows. Offsets as in
/// steep.GroupedMatMul.
extern const OpDef kSteepGroupedOuterProduct = {
    .name = "steep.GroupedOuterProduct",
    .in_files = true,
    .vjp = grouped_outer_product_vjp,
    .infer = grouped_outer_product_infer,
    .export_decomposition = grouped_outer_product_in_parts};

}  // namespace steep
