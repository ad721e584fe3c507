// Reads a model file and parses it.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "runtime/disk.h"
#include "steep/limits.h"

namespace steep {

/// Parses a model within the limits. Throws ModelError.
onnx::ModelProto parse_model(std::span<const std::byte> bytes, const Limits& limits);
/// Parses bytes that passed parse_model() before, or that Steep wrote: without limits. Throws
/// ModelError.
onnx::ModelProto parse_known(std::string_view bytes);
/// The bytes of a regular file; *mark is the file's. Throws IoError; ModelError when there are more
/// than `max_bytes`.
std::string read_file(const std::filesystem::path& path, size_t max_bytes,
                      FileMark* mark = nullptr);

}  // namespace steep
