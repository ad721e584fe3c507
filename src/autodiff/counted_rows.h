#pragma once

#include "ir/graph.h"

namespace steep {

/// Where a cross entropy ignores labels, computes only the rows whose labels count: scores and
/// loss, and above them all that is row-wise (products with weights, elementwise operators,
/// normalisation over the last axis) and that nothing else reads. Scores with other readers (a
/// model that returns them) are computed for all rows, too, but not differentiated there for the
/// loss. The loss stays the same, for a mean is over the counted rows anyway; so do gradients, of
/// which those of other rows are zeros (rows are summed in another order). Nothing is done where
/// there is no product to gain by, and where labels are computed from weights or at random.
///
/// For the graph of a model with its loss, before it is differentiated. Labels must be inputs, or
/// moved, cut, padded or compared from inputs and constants.
/// REQUIRES: types inferred.
void compute_counted_rows(Graph& graph);

}  // namespace steep
