// Replaces weights in an inference file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "steep/tensor.h"

namespace steep {

/// Copies `model_bytes` (a serialised inference model) and replaces the given initializers, and
/// Constant nodes by the name of their output. Dtype and shape must match; everything else in the
/// file stays the same, byte for byte. New data is stored in the file itself. Other initializers
/// with external data are stored inside too if `folder` is given; otherwise they stay external, and
/// the copy must be in the same folder as the original. Throws ModelError when a name is no
/// initializer, a dtype or shape differs, or the copy would exceed protobuf's 2 GiB.
std::string with_weights(std::span<const std::byte> model_bytes,
                         const std::map<std::string, Tensor>& weights,
                         const std::filesystem::path& folder = {});

}  // namespace steep
