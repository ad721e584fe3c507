// manifest.json: the numbers and texts of a checkpoint, and its files. The last line is the CRC-32C
// of everything before it.
#pragma once

#include <map>
#include <string>

#include "checkpoint/checkpoint.h"
#include "data/files.h"

namespace steep {

/// The JSON text of everything but the tensors. Throws DataError if `user` is no JSON, too long or
/// nested too deep, and for everything else that read_manifest() would refuse.
std::string write_manifest(const Checkpoint& checkpoint,
                           const std::map<std::string, FileRecord>& files);

/// Adds the checksum to a JSON object, as its last member.
std::string seal_manifest(std::string json);

/// The reverse of write_manifest(). Throws DataError with the reason.
void read_manifest(const ByteSource& source, Checkpoint* checkpoint,
                   std::map<std::string, FileRecord>* files);

}  // namespace steep
