// Checks the inputs of a call against the inputs of a program's graph.
#pragma once

#include <string>
#include <vector>

#include "ir/datum.h"
#include "ir/graph.h"
#include "steep/tensor.h"

namespace steep {

/// Throws DataError unless `count` is the size of `indices`, which has indices into graph.inputs().
void require_count(const Graph& graph, const std::vector<size_t>& indices, size_t count);

/// Throws ShapeError, whose text begins with `what`, unless the tensor has this type.
void require_type(const char* what, const std::string& node, const Type& target, const Tensor& t);

/// Throws DataError unless `d` is of the input's kind: a tensor, a sequence or an optional. With
/// `any_items`, items may have any type: values that bodies pass to each other are not checked.
void require_kind(Value input, const Datum& d, bool any_items);

}  // namespace steep
