// Tokens that attention hides, padding above all, are not computed.
#pragma once

#include "ir/graph.h"

namespace steep {

/// If masks of attention hide tokens from all queries, and nothing else reads the results of these
/// tokens, row-wise nodes (autodiff/row_wise.h) are computed for the other tokens only. Their rows
/// are gathered before these nodes, and scattered into zeros before attention, which works on the
/// whole batch. Other readers may be those that take rows by numbers known beforehand
/// (steep.TakeRows): these rows are computed as well.
///
/// The values of the masks show which tokens are hidden. They are computed at each run before
/// anything else, so they may depend on inputs only (makers_of_rows()). A number from -1e30 down
/// hides a token from a query that sees another one; -infinity always does.
///
/// STEEP_LOGS=rows says what is done, or why nothing is. For the graph of a model with its loss,
/// before it is differentiated and after other rows that are read were found. REQUIRES: types
/// inferred.
void compute_real_rows(Graph& graph);

}  // namespace steep
