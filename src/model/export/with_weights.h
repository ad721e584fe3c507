// An inference file with other weights in it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "steep/tensor.h"

namespace steep {

/// Copies `model_bytes` (a serialised inference model) with the given initializers, and Constant
/// nodes by the name of their output, replaced, dtype and shape kept; everything else in the file
/// stays as it was, byte for byte. New data is written into the file itself. Other initializers
/// whose data is external are brought in too if `folder` is given; else they stay as they are, and
/// the copy belongs into the same folder. Throws ModelError when a name is no initializer, a dtype
/// or shape differs, or the copy would exceed protobuf's 2 GiB.
std::string with_weights(std::span<const std::byte> model_bytes,
                         const std::map<std::string, Tensor>& weights,
                         const std::filesystem::path& folder = {});

}  // namespace steep
