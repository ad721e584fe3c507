// The safetensors format: 8 bytes with the length of a JSON header, the header, then the tensors'
// bytes. https://github.com/huggingface/safetensors#format
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/files.h"
#include "steep/data.h"

namespace steep {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::undefined;
  Dims dims;
  uint64_t offset = 0;  ///< from the start of the file
  uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
};

/// Reads and verifies the header: at most 100 MB and inside of the file; each name once; known
/// dtypes; byte counts that match the shapes; tensors that cover the bytes from the header's end to
/// the file's end, without overlap or gap. Memory use is proportional to the header. Throws
/// DataError that names file, tensor and reason; IoError.
SafetensorsHeader read_safetensors_header(const ByteSource& source, const Limits& limits = {});

/// Reads every tensor, each into memory of its own. Throws as read_safetensors_header(), and
/// DataError if a bool is not 0 or 1. `wants`: tensors for which it is false have a type only, and
/// do not count towards Limits::max_bytes.
std::map<std::string, Tensor> read_safetensors(
    const ByteSource& source, const Limits& limits = {},
    const std::function<bool(const std::string& name)>& wants = {});

/// Writes one file. Names are sorted; the first tensor is at a multiple of 64 bytes.
void write_safetensors(FileWriter& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace steep
