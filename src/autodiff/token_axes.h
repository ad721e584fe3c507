// Tracks the axes of attention's operands through nodes that transpose, reshape and split values.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// The meaning of an axis, or of a part of one.
enum class Counts : uint8_t { sequences, tokens, other };

struct AxisPart {
  Counts counts;
  Dim extent;
};

/// For each axis its parts, in row-major order. Parts of extent 1 may be missing.
using TokenAxes = std::vector<std::vector<AxisPart>>;

/// Given the axes of the output `y` of a node that moves the elements of one operand: the index of
/// that operand and its axes. Supports Reshape, Transpose, Expand of heads and similar nodes, nodes
/// that take part of an axis without tokens, and arithmetic with an operand of at most one axis.
/// std::nullopt if the node may mix tokens, or if that is unknown.
std::optional<std::pair<int, TokenAxes>> axes_before(Node n, Value y, const TokenAxes& axes);

/// The axes of output 0, given those of input 0, for Reshape, Transpose and similar nodes.
std::optional<TokenAxes> axes_after(Node n, const TokenAxes& axes);

/// Whether the rows (lines of the last axis) are tokens: one row per token of each sequence,
/// ordered by sequence (false) or by place in the sequence (true). Nothing when the rows are
/// something else.
std::optional<bool> by_place(const TokenAxes& axes, const Dim& sequences, const Dim& tokens);

}  // namespace steep
