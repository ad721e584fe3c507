// Tensors in a file that is mapped into memory, for states that are larger than the memory.
#pragma once

#include <filesystem>
#include <span>

#include "steep/tensor.h"

namespace steep {

/// Moves the data of tensors into one new file in `folder`. The file is mapped into memory: the
/// system writes its pages to the disk when memory is short, and reads them when they are used. It
/// has no name, and its space is reserved at once and freed with the last of the tensors. Blocks of
/// zeros are not written. A forked process shares the pages with its parent: REQUIRES that only one
/// of them uses the tensors. Throws IoError: the folder cannot be written to, or the space that is
/// free is too little (the message has both numbers); OutOfMemoryError: no address space is left.
void move_to_file(std::span<Tensor* const> tensors, const std::filesystem::path& folder);

}  // namespace steep
