// The safetensors format: 8 bytes with the length of a JSON header, the header, then the tensors'
// bytes. https://github.com/huggingface/safetensors#format
#pragma once

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
  uint64_t offset = 0;  ///< in the file
  uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
};

/// Reads and verifies the header: at most 100 MB and inside the file; each name once; known dtypes;
/// byte counts that match the shapes; tensors contiguous from the header's end to the file's end,
/// without overlap or hole. Takes memory in proportion to the header only. Throws DataError naming
/// file, tensor and reason; IoError.
SafetensorsHeader read_safetensors_header(const ByteSource& source, const Limits& limits = {});

/// Every tensor, each in its own memory. Throws as read_safetensors_header; bools must be 0 or 1.
std::map<std::string, Tensor> read_safetensors(const ByteSource& source, const Limits& limits = {});

/// Writes one file; names in order, the first tensor at a multiple of 64 bytes.
void write_safetensors(FileWriter& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace steep
