// Rows that nobody reads are not computed.
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
/// over the last axis), and nothing else reads these results. Results stay the same, and so do
/// gradients, which are zeros for other rows (rows are summed in another order). Nothing is done if
/// no product would become smaller. Three kinds of readers:
///
/// - A cross entropy that ignores labels reads the rows whose labels count; a mean is over these
///   anyway. Scores with other readers (a model that returns them) are computed for all rows, too,
///   but not differentiated there for the loss. Labels must be makers_of_labels() ones.
/// - Gather by one number, or Slice by bounds that the model says: one token of a sequence. Other
///   queries of the attention before it are left out, too (autodiff/read_queries.h).
/// - Attention whose mask hides tokens (autodiff/real_rows.h).
///
/// For the graph of a model with its loss, before it is differentiated. REQUIRES: types inferred.
void compute_read_rows(Graph& graph);

/// The losses, the nodes that take rows, and the attention that it finds.
std::vector<RowInfo> read_rows_rows();

/// By id.
using Makers = std::unordered_set<uint32_t>;

/// The nodes that make `labels` of forward inputs and constants, by moving, cutting, padding and
/// comparing them, so that they are known before anything else runs. Null for other labels: those
/// that depend on states, random numbers, nodes that cannot be planned, or float data, or that need
/// many nodes.
std::optional<Makers> makers_of_labels(Value labels);

/// The same of what says which rows count: of more nodes, of masks that are floats, and of other
/// rows that count.
std::optional<Makers> makers_of_rows(Value rows);

}  // namespace steep
