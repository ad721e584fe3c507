// Registration of user-defined functions. The package `steep` converts them from the forms that
// users write.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "steep/ops.h"

namespace steep::python {
namespace {

std::span<const std::byte> as_span(const nb::bytes& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size()};
}

}  // namespace

void init_custom_ops(nb::module_& m) {
  m.def(
      "register_op",
      [](const nb::bytes& function, const nb::bytes& gradient) {
        const std::span body = as_span(function), own = as_span(gradient);
        const nb::gil_scoped_release release;
        return register_op(body, own);
      },
      nb::arg("function"), nb::arg("gradient") = nb::bytes("", 0),
      nb::sig("def register_op(function: bytes, gradient: bytes = b'') -> list[str]"),
      "See steep.register_op. Returns the names that are new.");
  m.def(
      "register_optimizer",
      [](const nb::bytes& function) {
        const std::span body = as_span(function);
        const nb::gil_scoped_release release;
        return register_optimizer(body);
      },
      nb::arg("function"), nb::sig("def register_optimizer(function: bytes) -> list[str]"),
      "See steep.register_optimizer. Returns the names that are new.");
  m.def(
      "register_ops",
      [](const std::filesystem::path& file, const std::optional<Limits>& limits) {
        const nb::gil_scoped_release release;
        return register_ops(file, limits.value_or(Limits{}));
      },
      nb::arg("file"), nb::arg("limits") = nb::none(),
      "See steep.register_ops. Returns the names that are new.");
  m.def("unregister_op", &unregister_op, nb::arg("name"),
        "Takes back what was registered as 'domain.Name'; False when there is none.");
  m.def("registered_ops", &registered_ops, "Names of all that are registered, sorted.");
}

}  // namespace steep::python
