// Shared by the binding files. Each file defines one init_x(m); module.cc lists them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "steep/datum.h"
#include "steep/dump.h"
#include "steep/tensor.h"

namespace steep::python {

namespace nb = nanobind;

/// Converts any array in CPU memory to a Tensor: Steep's own Tensor, objects with the buffer
/// protocol (NumPy, also read-only), objects with __dlpack__ (PyTorch, JAX, …), or a DLPack
/// capsule. Shares contiguous bytes and holds their owner; copies others. Throws DataError with
/// `name` for anything else. `unwritable`, if not null, receives the reason why writes to the
/// result do not reach the array; "" if they do. Needs the GIL.
Tensor to_tensor(nb::handle array, const char* name = "", std::string* unwritable = nullptr);
/// Converts each array of a dict by name, as to_tensor().
std::map<std::string, Tensor> named(const nb::dict& arrays);

/// A DLPack capsule that shares the tensor's bytes and keeps them alive. Needs the GIL.
nb::object to_capsule(const Tensor& tensor);

/// Converts an array, a list or tuple of arrays (a sequence), or None (an empty optional) to a
/// Datum. See to_tensor().
Datum to_datum(nb::handle value, const char* name = "");
/// The reverse of to_datum(), with NumPy arrays that share the bytes. Needs the GIL.
nb::object to_object(const Datum& datum);

/// Raises the Python exception for the signal that ended a call with InterruptedError. Needs the
/// GIL.
void raise_interrupt();

/// The format "text", "passes" or "html". Throws DataError for another name.
DumpFormat dump_format(const std::string& name);

/// Defines the constructors of a session: from a model's bytes, and from the path of its file.
template <typename Options, typename Session>
void def_constructors(nb::class_<Session>& binding) {
  // bytes before path, because bytes convert to a path.
  binding.def(
      "__init__",
      [](Session* self, const nb::bytes& model, const Options& options) {
        const std::span data(reinterpret_cast<const std::byte*>(model.c_str()), model.size());
        const nb::gil_scoped_release release;
        new (self) Session(data, options);
      },
      nb::arg("model"), nb::arg("options"));
  binding.def(nb::init<const std::filesystem::path&, Options>(), nb::arg("model"),
              nb::arg("options"), nb::call_guard<nb::gil_scoped_release>());
}

/// Defines plan(), dump(), start_profile() and write_profile() of a session with named inputs.
template <typename Session>
void def_plans(nb::class_<Session>& session) {
  const nb::call_guard<nb::gil_scoped_release> unlocked;
  session
      .def(
          "plan",
          [](Session& s, const nb::dict& arrays) {
            const std::map<std::string, Tensor> inputs = named(arrays);
            const nb::gil_scoped_release release;
            return s.plan(inputs);
          },
          nb::arg("inputs"), nb::sig("def plan(self, inputs: dict[str, object]) -> StepPlan"))
      .def(
          "dump",
          [](Session& s, const nb::dict& arrays, const std::string& format) {
            const std::map<std::string, Tensor> inputs = named(arrays);
            const DumpFormat how = dump_format(format);
            const nb::gil_scoped_release release;
            return s.dump(inputs, how);
          },
          nb::arg("inputs"), nb::arg("format") = "text",
          nb::sig("def dump(self, inputs: dict[str, object], format: str = 'text') -> str"),
          "The graph, compiled for these: \"text\", \"passes\" or \"html\".")
      .def("start_profile", &Session::start_profile, unlocked)
      .def("write_profile", &Session::write_profile, nb::arg("path"), unlocked,
           "Writes a trace for ui.perfetto.dev.");
}

/// The dtype with this NumPy name. Throws DataError.
DType dtype_from(const std::string& name);

}  // namespace steep::python
