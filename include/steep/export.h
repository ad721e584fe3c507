// A trained model as one runs it.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace steep {

/// Copies a serialised model for running it, not training it on:
///
/// - BatchNormalization in training mode normalises by its running statistics, as it does in
///   evaluation, unless somebody reads the statistics that it returns; Dropout is the identity.
/// - A BatchNormalization that is the only reader of a Conv, Gemm or MatMul with constant weights
///   is folded into these weights and gone. Others stay: of computed statistics, of other weights
///   than float32 and float64, inside of bodies and functions, or after a value that somebody else
///   reads.
///
/// Everything else is kept. Initializers whose data is external are brought in if `folder` is
/// given, else they stay outside and are not folded. Throws ModelError when the bytes are no ONNX
/// model or the copy would exceed protobuf's 2 GiB.
std::string model_for_inference(std::span<const std::byte> model,
                                const std::filesystem::path& folder = {});

}  // namespace steep
