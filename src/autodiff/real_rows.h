// Tokens that attention hides, padding above all, are not computed.
#pragma once

#include "ir/graph.h"

namespace steep {

/// Where masks of attention hide tokens from all queries, and nothing else reads what is made of
/// these tokens, computes what is made row by row (autodiff/row_wise.h) for the other tokens only:
/// rows are taken before it, and put among zeros for attention, which works on the whole batch.
/// Other readers may be those that take rows by numbers known beforehand (steep.TakeRows): these
/// rows are computed as well.
///
/// Which tokens are hidden is found in the values of the masks, at each run and before anything
/// else, whatever they are made by; so they must be made of inputs (makers_of_rows()). A number
/// from -1e30 down hides a token from a query that sees another one; -infinity always does.
///
/// STEEP_LOGS=rows says what is done, or why nothing is. For the graph of a model with its loss,
/// before it is differentiated and after other rows that are read were found. REQUIRES: types
/// inferred.
void compute_real_rows(Graph& graph);

}  // namespace steep
