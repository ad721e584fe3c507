// Copies the file field by field; only the data of named and of external tensors changes.
#include "model/export/with_weights.h"

#include <new>

#include "model/export/detached.h"
#include "runtime/memory.h"

namespace steep {

std::string with_weights(std::span<const std::byte> model_bytes,
                         const std::map<std::string, Tensor>& weights,
                         const std::filesystem::path& folder) {
  try {
    return DetachedModel(model_bytes, weights, folder).whole();
  } catch (const std::bad_alloc&) {
    throw_out_of_memory();
  }
}

}  // namespace steep
