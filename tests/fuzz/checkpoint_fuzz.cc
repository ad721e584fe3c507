// Any bytes read as a part of a checkpoint, or as training data, are accepted or refused with a
// steep::Error. The first byte selects the form: safetensors, npz, manifest, npy, or the body of a
// manifest with a correct checksum.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "checkpoint/manifest.h"
#include "data/npz.h"
#include "data/safetensors.h"
#include "steep/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace steep;
  if (size == 0) return 0;
  const Limits limits{.max_bytes = uint64_t{16} << 20, .max_arrays = 1000};
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data + 1, size - 1));
  const MemorySource source(bytes, "input");
  try {
    Checkpoint checkpoint;
    std::map<std::string, FileRecord> files;
    switch (data[0] % 8) {
      case 0: read_safetensors(source, limits); break;
      case 1: read_npz(source, limits); break;
      case 2: read_manifest(source, &checkpoint, &files); break;
      case 4: read_npy(source, "input", limits); break;
      default: {
        if (size < 3) return 0;
        const std::string sealed =
            seal_manifest(std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
        read_manifest(MemorySource(std::as_bytes(std::span(sealed)), "input"), &checkpoint, &files);
      }
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the expected refusal
  }
  return 0;
}
