// Makes a fixed number of rows (the batch) symbolic. Exporters write a fixed number when they trace
// a model with one batch. Applies if each row of the outputs depends only on the same row of the
// inputs.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <string>

#include "ir/graph.h"

namespace steep {

/// The first extent of all inputs that are fed, if it is one known number; 0 if inputs differ, an
/// extent is unknown, an input has no axis, or there is no input.
int64_t fixed_batch(const onnx::GraphProto& graph);

/// A name for the number of rows that no extent of the inputs uses.
std::string batch_symbol(const onnx::GraphProto& graph);

/// The name of the first extent of all inputs that are fed, if they have one in common; else "".
std::string open_rows(const onnx::GraphProto& graph);

/// A number of rows that a Reshape in the graph fixes, although the inputs leave it open.
struct RowsInside {
  int64_t rows = 0;  ///< 0: none, or several
  std::string node{};
};
/// Of a graph whose inputs have `symbol` rows.
RowsInside rows_inside(const Graph& graph, const std::string& symbol);

/// `graph` has inputs whose first extent is `symbol`, where the file has the number `rows`. Follows
/// the rows through all nodes, and rewrites constants that contain the number, such as Reshape's
/// [8, 10] to [-1, 10]. Returns "" on success: row i of each output depends only on row i of the
/// inputs for any number of rows, and with `rows` rows the graph is that of the file. An output may
/// also be independent of the inputs. Otherwise returns the first reason for doubt, such as
/// "ReduceMax 'pool' mixes rows"; the graph is then unusable.
///
/// Batch normalisation in training mode is an exception: it uses the batch that is fed.
std::string open_batch(Graph& graph, const std::string& symbol, int64_t rows);

}  // namespace steep
