// Where the axes of attention's operands lie in values that are moved, joined and split.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// What an axis, or a part of one, counts.
enum class Counts : uint8_t { sequences, tokens, other };

struct AxisPart {
  Counts counts;
  Dim extent;
};

/// By axis: its parts, in row-major order. Parts of extent 1 may be left out.
using TokenAxes = std::vector<std::vector<AxisPart>>;

/// The one operand that a node moves, and that operand's axes, given those of its output `y`.
/// std::nullopt if the node may mix tokens, or if this is not known. Reshape, Transpose, Expand of
/// heads and their like; also what takes part of an axis that is not of tokens, and arithmetic with
/// an operand of one axis at most.
std::optional<std::pair<int, TokenAxes>> axes_before(Node n, Value y, const TokenAxes& axes);

/// The axes of output 0, given those of input 0: of Reshape, Transpose and their like.
std::optional<TokenAxes> axes_after(Node n, const TokenAxes& axes);

/// Are the rows (what the last axis holds) those of tokens: a row for each token of each sequence,
/// by sequence (false) or by place in the sequence (true)? Nothing for others.
std::optional<bool> by_place(const TokenAxes& axes, const Dim& sequences, const Dim& tokens);

}  // namespace steep
