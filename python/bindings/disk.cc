// Python writes files with the same functions as the engine.
#include "runtime/disk.h"

#include <nanobind/stl/filesystem.h>

#include "bindings.h"

namespace steep::python {

void init_disk(nb::module_& m) {
  m.def(
      "write_file",
      [](const std::filesystem::path& path, const nb::bytes& data) {
        const std::string_view bytes(data.c_str(), data.size());
        const nb::gil_scoped_release release;
        write_file(path, [&](FileWriter& file) { file.write(bytes); });
      },
      nb::arg("path"), nb::arg("data"),
      "Replaces a file as a whole, or makes a new one. Raises IoError, also for devices, FIFOs and "
      "folders.");
}

}  // namespace steep::python
