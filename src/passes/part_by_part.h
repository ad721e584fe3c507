// Large arrays that are made of parts, or divided into parts.
#pragma once

#include <vector>

#include "ops/pattern.h"

namespace steep {

/// Smaller arrays are seldom at the peak, and a node for each part takes time.
constexpr size_t kLeastBytesInParts = size_t{16} << 20;

/// The readers of the values of a graph, and the place of each node, by id.
struct ReadersInOrder {
  const Readers& readers;
  const std::vector<size_t>& position;

  /// The reader that comes first; null if nothing reads the value.
  Node first_of(Value v) const;
};

/// Whether the node makes each part for this reader alone, so that a part can end early.
bool frees_parts(Node concat, const Readers& readers);

/// A rule of the pass: the loss over scores that are made in parts, a part at a time.
bool take_loss_by_part(const Match& loss, const ReadersInOrder& order);

/// A pass (pipeline.h).
void part_by_part(Graph& graph);
std::vector<PatternRuleInfo> part_by_part_patterns();

}  // namespace steep
