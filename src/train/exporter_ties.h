// Weights that an exporter merged or copied.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Adds warnings about parameters of which training would treat two as one, or one as two:
///
/// - Exporters merge initializers with equal values. The gains and biases of new normalisations are
///   then one initializer, although PyTorch trains them apart: a parameter whose elements are all
///   equal, and which is read more than once.
/// - Exporters fold the transpose of a weight. If the model reads the weight itself too, the file
///   has two, although PyTorch trains one: a parameter that is the transpose of another. Others
///   write a table of words twice: a parameter that equals another, if only one of them is looked
///   up by index.
void add_doubtful_ties(const Graph& graph, std::span<const Value> parameters,
                       std::vector<std::string>& warnings);

}  // namespace steep
