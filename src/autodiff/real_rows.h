// Does not compute tokens that attention hides, mainly padding.
#pragma once

#include "ir/graph.h"

namespace steep {

/// If masks of attention hide tokens from all queries, and nothing else reads the results of these
/// tokens, row-wise nodes (autodiff/row_wise.h) are computed only for the other tokens. Their rows
/// are gathered before these nodes, and scattered into zeros before attention, which works on the
/// whole batch. Nodes may also read rows whose numbers are known in advance (steep.TakeRows): these
/// rows are computed as well.
///
/// The values of the masks determine which tokens are hidden. They are computed first in each run,
/// so they may depend on inputs only (makers_of_rows()). A number of at most -1e30 hides a token
/// from a query that sees another token; -infinity always hides it.
///
/// STEEP_LOGS=rows logs what is done, or why nothing is. For the graph of a model with its loss,
/// after compute_read_rows() found other rows and before differentiation. REQUIRES: types inferred.
void compute_real_rows(Graph& graph);

}  // namespace steep
