// The files in which a run records its steps, and the place of its checkpoint.
#include <nanobind/stl/string_view.h>

#include "bindings.h"
#include "checkpoint/checkpoint.h"
#include "curves/event_file.h"
#include "curves/step_table.h"

namespace steep::python {

void init_curves(nb::module_& m) {
  const nb::call_guard<nb::gil_scoped_release> unlocked;
  nb::class_<EventFile>(m, "EventFile", "Scalars in a new file for TensorBoard.")
      .def(
          "__init__",
          [](EventFile* self, const std::filesystem::path& folder, int64_t step) {
            new (self) EventFile(folder.string(), step);
          },
          nb::arg("folder"), nb::arg("step"), unlocked,
          "step: those done before; TensorBoard drops later ones of other files. Raises IoError.")
      .def("add", &EventFile::add, nb::arg("tag"), nb::arg("step"), nb::arg("value"), unlocked,
           "Raises IoError.");
  nb::class_<StepTable>(m, "StepTable", "A CSV file with a row for each step.")
      .def(
          "__init__",
          [](StepTable* self, const std::filesystem::path& path, int64_t step) {
            new (self) StepTable(path.string(), step);
          },
          nb::arg("path"), nb::arg("step"), unlocked,
          "step: those done before, whose rows an earlier file keeps. Raises IoError.")
      .def("add", &StepTable::add, nb::arg("step"), nb::arg("epoch"), nb::arg("loss"),
           nb::arg("lr"), nb::arg("grad_norm"), unlocked, "Raises IoError.");
  m.def("check_checkpoint_destination", &check_checkpoint_destination, nb::arg("path"), unlocked,
        "Raises IoError if a checkpoint could not be written to `path`. Changes no file.");
}

}  // namespace steep::python
