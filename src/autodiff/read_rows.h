// Computes only rows that are read.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "ops/pattern.h"

namespace steep {

/// Computes only the rows that are read. It applies where a reader needs only some rows of the
/// results of row-wise nodes (products with weights, elementwise operators, dropout, normalisation
/// over the last axis), and nothing else reads these results. Results and gradients stay the same
/// (gradients of the other rows are zeros), except that rows are summed in another order. Nothing
/// changes if no product would become smaller. Three kinds of readers:
///
/// - A cross entropy with an ignored label reads only the rows whose labels count. If scores have
///   other readers (a model that returns them), all rows are computed as well, but the loss's
///   gradient does not go through these. The labels must satisfy makers_of_labels().
/// - Gather with one index, or Slice with constant bounds: one token of a sequence. Queries of the
///   attention before it are left out, too (autodiff/read_queries.h).
/// - Attention whose mask hides tokens (autodiff/real_rows.h).
///
/// For the graph of a model with its loss, before differentiation. REQUIRES: types inferred.
void compute_read_rows(Graph& graph);

/// The pattern rules for losses, nodes that take rows, and attention.
std::vector<PatternRuleInfo> read_rows_patterns();

/// Ids of nodes.
using Makers = std::unordered_set<uint32_t>;

/// The nodes that compute `labels` from forward inputs and constants by moving, slicing, padding
/// and comparing, so that labels are known before anything else runs. Nothing for other labels:
/// those that depend on states, random numbers, nodes that cannot be planned, or float data, or
/// that need many nodes.
std::optional<Makers> makers_of_labels(Value labels);

/// As makers_of_labels(), for values that say which rows count. Allows more nodes, float masks, and
/// CountedRows.
std::optional<Makers> makers_of_rows(Value rows);

}  // namespace steep
