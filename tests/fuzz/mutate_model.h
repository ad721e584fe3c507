// Mutations that turn a model into another model. libFuzzer's own mutations of bytes rarely do so.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstddef>
#include <cstdint>
#include <random>

namespace steep::fuzz {

/// Applies one random mutation: another operator, a hostile attribute, a moved edge, other dims,
/// dtypes, values or opsets, or a node that is copied, removed, or put into a branch.
void mutate_model(onnx::ModelProto& model, std::mt19937_64& random);

/// Copies the graph of `from` into that of `into` under new names, and connects the two with an
/// edge.
void join_models(onnx::ModelProto& into, const onnx::ModelProto& from, std::mt19937_64& random);

}  // namespace steep::fuzz
