// Makes a fixed number of rows symbolic. Exporters write such a number when they trace a model with
// one batch. Applies if each row of the outputs depends only on the same row of the inputs.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <string>

#include "ir/graph.h"

namespace steep {

/// The first extent of all inputs that are fed, where it is one number; else 0: an input has
/// another one, no known one, or no axis, or there is none.
int64_t fixed_batch(const onnx::GraphProto& graph);

/// A name for the number of rows that no extent of the inputs has.
std::string batch_symbol(const onnx::GraphProto& graph);

/// Of a graph whose inputs have the extent `symbol` first where their file has the number `rows`:
/// follows the rows through all nodes, and writes constants that hold their number anew, as
/// Reshape's [8, 10] to [-1, 10]. Returns "" when row i of each output is then made of row i of the
/// inputs alone, whatever their number is, and with `rows` of them the graph is what the file says;
/// or an output is the same for all inputs. Else returns the first reason why that is not known, as
/// "ReduceMean 'pool' mixes rows"; the graph is then of no use.
///
/// Batch normalisation in training mode is an exception: it uses the batch that is fed.
std::string open_batch(Graph& graph, const std::string& symbol, int64_t rows);

}  // namespace steep
