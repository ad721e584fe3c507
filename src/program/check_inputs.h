// What the caller of a program feeds, against what its graph wants.
#pragma once

#include <string>
#include <vector>

#include "ir/datum.h"
#include "ir/graph.h"
#include "steep/tensor.h"

namespace steep {

/// Throws DataError unless there are as many as `wanted`, which are indices into graph.inputs().
void require_count(const Graph& graph, const std::vector<size_t>& wanted, size_t count);

/// Throws ShapeError that begins with `what` unless a tensor has this type.
void require_type(const char* what, const std::string& node, const Type& wanted, const Tensor& t);

/// Throws DataError unless `d` is a tensor, sequence or optional as the input is. What bodies hand
/// on among themselves may hold items of any type (`any_items`).
void require_kind(Value input, const Datum& d, bool any_items);

}  // namespace steep
