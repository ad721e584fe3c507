// manifest.json: what a checkpoint holds. The last line is the CRC-32C of everything before it.
#pragma once

#include <map>
#include <string>

#include "checkpoint/checkpoint.h"
#include "data/files.h"

namespace steep {

struct FileRecord {
  uint64_t bytes = 0;
  uint32_t crc = 0;
};

/// JSON text of all but the tensors. Throws DataError when `user` is no JSON, too long or too deep,
/// and for whatever else read_manifest() would refuse.
std::string write_manifest(const Checkpoint& checkpoint,
                           const std::map<std::string, FileRecord>& files);

/// Puts the checksum behind a JSON object, as its last member.
std::string seal_manifest(std::string json);

/// The reverse. Throws DataError with the reason.
void read_manifest(const ByteSource& source, Checkpoint* checkpoint,
                   std::map<std::string, FileRecord>* files);

}  // namespace steep
