// Functions that turn a model into a model. python/steep/session/gradient.py exports them as
// steep.grad() and steep.model_for_inference().
#include "steep/gradient.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "steep/export.h"

namespace steep::python {
namespace {

using Names = std::vector<std::string>;

nb::bytes to_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

}  // namespace

void init_gradient(nb::module_& m) {
  m.def(
      "gradient_model",
      [](const nb::bytes& model, Names wrt, Names outputs, bool scalar_gradients,
         const std::optional<Limits>& limits) {
        const std::span data(reinterpret_cast<const std::byte*>(model.c_str()), model.size());
        std::string result;
        {
          const nb::gil_scoped_release release;
          result = gradient_model(data, {.wrt = std::move(wrt),
                                         .outputs = std::move(outputs),
                                         .scalar_gradients = scalar_gradients,
                                         .limits = limits.value_or(Limits{})});
        }
        return to_bytes(result);
      },
      nb::arg("model"), nb::arg("wrt"), nb::arg("outputs"), nb::arg("scalar_gradients") = false,
      nb::arg("limits") = nb::none(),
      "The serialised model of a model's gradients: include/steep/gradient.h.");
  m.def(
      "gradient_model",
      [](const std::filesystem::path& model, Names wrt, Names outputs,
         const std::optional<Limits>& limits) {
        std::string result;
        {
          const nb::gil_scoped_release release;
          result = gradient_model(model, {.wrt = std::move(wrt),
                                          .outputs = std::move(outputs),
                                          .limits = limits.value_or(Limits{})});
        }
        return to_bytes(result);
      },
      nb::arg("model"), nb::arg("wrt"), nb::arg("outputs"), nb::arg("limits") = nb::none());
  m.def(
      "model_for_inference",
      [](const nb::bytes& model, const std::filesystem::path& folder) {
        const std::span data(reinterpret_cast<const std::byte*>(model.c_str()), model.size());
        std::string result;
        {
          const nb::gil_scoped_release release;
          result = model_for_inference(data, folder);
        }
        return to_bytes(result);
      },
      nb::arg("model"), nb::arg("folder"), "include/steep/export.h");
  m.def(
      "write_for_inference",
      [](const std::filesystem::path& model, const std::filesystem::path& path, bool external_data,
         size_t max_file_bytes) {
        const nb::gil_scoped_release release;
        write_for_inference(model, path,
                            {.external_data = external_data, .max_file_bytes = max_file_bytes});
      },
      nb::arg("model"), nb::arg("path"), nb::arg("external_data") = false,
      nb::arg("max_file_bytes") = size_t{INT_MAX}, "include/steep/export.h");
}

}  // namespace steep::python
