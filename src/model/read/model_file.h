// The bytes of a model file, and the message that they are.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "steep/limits.h"

namespace steep {

/// A model as it stands in its bytes, within the limits. Throws ModelError.
onnx::ModelProto parse_model(std::span<const std::byte> bytes, const Limits& limits);
/// The bytes of a regular file. Throws IoError; ModelError for more than `max_bytes`.
std::string read_file(const std::filesystem::path& path, size_t max_bytes);

}  // namespace steep
