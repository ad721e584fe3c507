// Selection of providers and devices for sessions.
#include "steep/providers.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace steep::python {

void init_providers(nb::module_& m) {
  nb::class_<ProviderChoice>(m, "ProviderChoice", "A provider by its name, and its options.")
      .def(
          "__init__",
          [](ProviderChoice* self, std::string name, std::map<std::string, std::string> options) {
            new (self) ProviderChoice{std::move(name), std::move(options)};
          },
          nb::arg("name"), nb::arg("options"))
      .def_ro("name", &ProviderChoice::name)
      .def_ro("options", &ProviderChoice::options);
  m.def("register_provider", &register_provider, nb::arg("library"),
        "Loads a plug-in; returns the name of its provider. Raises ProviderError.");
  m.def("available_providers", &available_providers,
        "Names of the providers that have a device here, the CPU's last.");
}

}  // namespace steep::python
