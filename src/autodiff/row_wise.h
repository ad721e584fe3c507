// Nodes that make each row of their result of one row of an operand: products with weights,
// elementwise operators, dropout, normalisation over the last axis. A row is what the last axis
// holds.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ir/attr.h"
#include "ir/graph.h"

namespace steep {

/// What a node does with each of its operands.
enum class RowOperand : uint8_t {
  rows,   ///< row i of the result is made of its row i
  whole,  ///< every row is made of it
};

/// Is the shape's rank known, and at least 2?
bool has_rows(Value v);

/// Reshape and its like, of rows to as many rows of the same length.
bool keeps_rows(Node n);

/// Axes that a Slice cuts, counted from the front, if it keeps the last axis whole and the order of
/// elements. std::nullopt for other nodes.
std::optional<Ints> cut_axes(Node n);

/// By operand, of a node that makes each row of output 0 of one row; nothing of others. A Slice of
/// cut_axes() is among them.
std::optional<std::vector<RowOperand>> by_rows(Node n);

/// Has it so much to compute that leaving out rows pays?
bool is_product(Node n);

/// Must it know where its rows lie among all rows, as dropout must, which numbers its elements?
bool needs_leads(Node n);

/// `n` anew, for some rows: its output 0, [p, k]. `take` gives the rows [p, k] of an operand
/// [d…, k]. `rows` are their numbers, int64[p], or null for all; `leads` int64[…] are the extents
/// d…, which it reads where needs_leads() and there are rows. REQUIRES: by_rows(n), and neither
/// keeps_rows() nor cut_axes().
Value write_for_rows(Node n, Value rows, Value leads, const std::function<Value(Value)>& take);

}  // namespace steep
