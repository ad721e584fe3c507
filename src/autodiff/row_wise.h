// Nodes whose result rows each depend on one row of an operand: products with weights, elementwise
// operators, dropout, normalisation over the last axis. A row is a line of elements along the last
// axis.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ir/attr.h"
#include "ir/graph.h"

namespace steep {

/// How a node uses an operand.
enum class RowOperand : uint8_t {
  rows,   ///< row i of the result depends on row i of the operand
  whole,  ///< every row of the result depends on the operand
};

/// Whether the rank is known and at least 2.
bool has_rows(Value v);

/// Whether the node, such as Reshape, keeps the number of rows and their length.
bool keeps_rows(Node n);

/// The axes that a Slice cuts, counted from the front, if it keeps the last axis whole and the
/// order of elements. std::nullopt for other nodes.
std::optional<Ints> cut_axes(Node n);

/// For each operand of a node whose output 0 is row-wise; nothing for other nodes. A Slice of
/// cut_axes() counts as row-wise.
std::optional<std::vector<RowOperand>> by_rows(Node n);

/// Whether the node computes so much that leaving out rows pays.
bool is_product(Node n);

/// Whether the node must know the positions of its rows among all rows. Dropout does, because it
/// numbers its elements.
bool needs_leads(Node n);

/// Rewrites `n` for some rows and returns its output 0, [p, k]. `take` returns the rows [p, k] of
/// an operand [d…, k]. `rows`: their numbers, int64[p], or null for all rows; `leads` int64[…]: the
/// extents d…, read when needs_leads() and `rows` is not null. REQUIRES: by_rows(n), and neither
/// keeps_rows() nor cut_axes().
Value write_for_rows(Node n, Value rows, Value leads, const std::function<Value(Value)>& take);

}  // namespace steep
