// The metadata of a model file, without the rest of it.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace steep {

/// The entries of metadata_props (ONNX's ModelProto). Of two with one key, the last one counts.
/// Throws IoError; ModelError: the file is no message, or has more than `max_bytes`.
std::map<std::string, std::string> custom_metadata(const std::filesystem::path& model,
                                                   size_t max_bytes);

}  // namespace steep
