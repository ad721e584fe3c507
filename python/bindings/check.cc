// check(): lists all obstacles to training a model; and what its loss would be attached to.
#include "steep/check.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "model/import/import.h"
#include "train/loss.h"

namespace steep::python {
namespace {

bool reads_scores(ImportedModel model, const TrainingOptions& options) {
  offer_output(model.graph, options);
  return reads_scores_within(model.graph, options);
}

ImportOptions import_options(const TrainingOptions& options) {
  return {.limits = options.limits, .leave_out = true};
}

}  // namespace

void init_check(nb::module_& m) {
  nb::class_<Obstacle>(m, "Obstacle", "One thing that stands in the way of training a model.")
      .def_ro("op", &Obstacle::op)
      .def_ro("node", &Obstacle::node, "Or the name that is at fault, where there is no node.")
      .def_ro("path", &Obstacle::path, "From the node to the loss.")
      .def_ro("remedy", &Obstacle::remedy)
      .def_ro("what", &Obstacle::what)
      .def("__repr__", [](const Obstacle& o) {
        const std::string path = o.path.empty() ? "" : " (" + o.path + ")";
        return o.op + " node '" + o.node + "'" + path + ": " + o.what + " " + o.remedy;
      });
  m.def(
      "check",
      [](const nb::bytes& model, const TrainingOptions& options) {
        const std::span data(reinterpret_cast<const std::byte*>(model.c_str()), model.size());
        const nb::gil_scoped_release release;
        return check_model(data, options).obstacles;
      },
      nb::arg("model"), nb::arg("options") = TrainingOptions(),
      nb::sig("def check(model: bytes, options: TrainingOptions = ...) -> list[Obstacle]"));
  m.def(
      "check",
      [](const std::filesystem::path& model, const TrainingOptions& options) {
        const nb::gil_scoped_release release;
        return check_model(model, options).obstacles;
      },
      nb::arg("model"), nb::arg("options") = TrainingOptions(),
      nb::sig("def check(model: str, options: TrainingOptions = ...) -> list[Obstacle]"));
  m.def(
      "reads_scores_within",
      [](const nb::bytes& model, const TrainingOptions& options) {
        const std::span data(reinterpret_cast<const std::byte*>(model.c_str()), model.size());
        const nb::gil_scoped_release release;
        return reads_scores(import_model(data, import_options(options)), options);
      },
      nb::arg("model"), nb::arg("options"),
      nb::sig("def reads_scores_within(model: bytes, options: TrainingOptions) -> bool"),
      "Does the loss read scores whose Softmax or Sigmoid is the output? Raises ModelError.");
  m.def(
      "reads_scores_within",
      [](const std::filesystem::path& model, const TrainingOptions& options) {
        const nb::gil_scoped_release release;
        return reads_scores(import_model(model, import_options(options)), options);
      },
      nb::arg("model"), nb::arg("options"),
      nb::sig("def reads_scores_within(model: str, options: TrainingOptions) -> bool"));
}

}  // namespace steep::python
