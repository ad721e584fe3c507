// Any bytes read as a model are imported into a graph that passes verify(), or refused with an
// error that import.h names.

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/import/import.h"
#include "steep/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace steep;
  Limits limits;
  limits.max_bytes = size_t{16} << 20;
  limits.max_nodes = 10'000;
  try {
    const ImportedModel model =
        import_model(std::as_bytes(std::span(data, size)), {.limits = limits});
    verify(model.graph, "import");
  } catch (const ModelError&) {
  } catch (const ShapeError&) {
  } catch (const OutOfMemoryError&) {  // a value above the limit
  }
  return 0;
}
