// Control flow as ONNX has it.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace steep {

/// Attribute of Loop and Scan nodes of ours that are about to be written: the number of inputs, the
/// last ones of node and body, that the body knows by name.
inline constexpr const char* kCaptured = "captured";

/// A steep.Loop's outputs as ONNX's Scan gives them, or its Loop where what is carried may change
/// its shape; null for those that nothing reads. The states that a gradient needs are stacked, or
/// where their shapes change a sequence. The body is in ONNX's operators.
std::vector<Value> plain_loop(Node n);

/// steep.ZerosLike, steep.SumOf and steep.SequenceExtents of sequences: loops over their items.
/// Nothing for optionals.
std::vector<Value> plain_zeros_like(Node n);
std::vector<Value> plain_sum_of(Node n);
std::vector<Value> plain_sequence_extents(Node n);

/// Puts the bodies of every If into ONNX's operators.
void expand_branches(Graph& g);

}  // namespace steep
