// What the binding files share. Each file defines one init_x(m); module.cc lists them.
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

/// Any array in CPU memory → Tensor: our own Tensor, objects with the buffer protocol (NumPy,
/// read-only ones too), objects with __dlpack__ (PyTorch, JAX, …), or a DLPack capsule. Shares the
/// bytes, and holds their owner, when they are contiguous; copies otherwise. Throws DataError
/// naming `name` for anything else. With `unwritable`, says there why the array cannot be written
/// into through the result: "" when it can. Needs the GIL.
Tensor to_tensor(nb::handle array, const char* name = "", std::string* unwritable = nullptr);
/// Each array of a dict by name, as to_tensor().
std::map<std::string, Tensor> named(const nb::dict& arrays);

/// A DLPack capsule that shares the tensor's bytes and keeps them alive. Needs the GIL.
nb::object to_capsule(const Tensor& tensor);

/// An array, a list or tuple of such (a sequence), or None (an empty optional) → Datum. As
/// to_tensor().
Datum to_datum(nb::handle value, const char* name = "");
/// The way back, with NumPy arrays that share the bytes. Needs the GIL.
nb::object to_object(const Datum& datum);

/// Sets the Python error of the signal that ended a call with InterruptedError. Needs the GIL.
void raise_interrupt();

/// From "text", "passes" or "html". Throws DataError.
DumpFormat dump_format(const std::string& name);

/// Constructors of a session, from a model's bytes and from the path of its file.
template <typename Options, typename Session>
void def_constructors(nb::class_<Session>& made) {
  // Bytes first: they would pass for a path.
  made.def(
      "__init__",
      [](Session* self, const nb::bytes& model, const Options& options) {
        const std::span data(reinterpret_cast<const std::byte*>(model.c_str()), model.size());
        const nb::gil_scoped_release release;
        new (self) Session(data, options);
      },
      nb::arg("model"), nb::arg("options"));
  made.def(nb::init<const std::filesystem::path&, Options>(), nb::arg("model"), nb::arg("options"),
           nb::call_guard<nb::gil_scoped_release>());
}

/// plan(), dump(), start_profile() and write_profile() of a session that is fed by name.
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

/// Dtype from its name as NumPy spells it. Throws DataError.
DType dtype_from(const std::string& name);

}  // namespace steep::python
