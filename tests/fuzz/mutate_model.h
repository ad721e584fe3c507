// Changes to a model that keep it a model: what libFuzzer's own mutations of bytes rarely reach.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstddef>
#include <cstdint>
#include <random>

namespace steep::fuzz {

/// One change at random: another operator, a hostile attribute, an edge moved, other dims, dtypes,
/// values or opsets, a node copied, removed, or put into a branch.
void mutate_model(onnx::ModelProto& model, std::mt19937_64& random);

/// Copies the graph of `from` into that of `into` under new names, and joins the two by an edge.
void join_models(onnx::ModelProto& into, const onnx::ModelProto& from, std::mt19937_64& random);

}  // namespace steep::fuzz
