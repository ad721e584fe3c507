// InferenceSession: named arrays in, tensors out. python/steep/session/inference.py gives it the
// interface of ONNX Runtime.
#include "steep/inference.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace steep::python {

void init_inference(nb::module_& m) {
  using Session = InferenceSession;
  nb::class_<InferenceOptions>(m, "InferenceOptions", "See include/steep/inference.h.")
      .def(nb::init<>())
      .def_rw("optimize", &InferenceOptions::optimize)
      .def_rw("disabled_passes", &InferenceOptions::disabled_passes)
      .def_rw("threads", &InferenceOptions::threads)
      .def_rw("seed", &InferenceOptions::seed)
      .def_rw("check_finite", &InferenceOptions::check_finite)
      .def_rw("limits", &InferenceOptions::limits)
      .def_rw("providers", &InferenceOptions::providers);
  nb::class_<ModelMetadata>(m, "ModelMetadata", "What a model says about itself.")
      .def_ro("producer_name", &ModelMetadata::producer)
      .def_ro("graph_name", &ModelMetadata::graph_name)
      .def_ro("graph_description", &ModelMetadata::graph_description)
      .def_ro("domain", &ModelMetadata::domain)
      .def_ro("description", &ModelMetadata::description)
      .def_ro("version", &ModelMetadata::version)
      .def_ro("custom_metadata_map", &ModelMetadata::custom);
  nb::class_<Session> session(m, "InferenceSession");
  def_constructors<InferenceOptions>(session);
  def_plans(session);
  session
      .def(
          "run_data",
          [](Session& s, const std::vector<std::string>& outputs, const nb::dict& values) {
            std::map<std::string, Datum> inputs;
            for (auto [key, value] : values) {
              const auto name = nb::cast<std::string>(key);
              inputs[name] = to_datum(value, name.c_str());
            }
            std::vector<Datum> results;
            {
              const nb::gil_scoped_release release;
              results = s.run_data(inputs, outputs);
            }
            nb::list out;
            for (const Datum& d : results) out.append(to_object(d));
            return out;
          },
          nb::arg("outputs"), nb::arg("inputs"),
          nb::sig("def run_data(self, outputs: collections.abc.Sequence[str], "
                  "inputs: dict[str, object]) -> list[object]"),
          "The outputs named (all, when none is): NumPy arrays, lists of them for sequences, and "
          "None for empty optionals.")
      .def("input_info", &Session::input_info, nb::sig("def input_info(self) -> list[TensorInfo]"))
      .def("default_info", &Session::default_info,
           nb::sig("def default_info(self) -> list[TensorInfo]"))
      .def("output_info", &Session::output_info,
           nb::sig("def output_info(self) -> list[TensorInfo]"))
      .def_prop_ro("metadata", &Session::metadata, nb::rv_policy::reference_internal);
}

}  // namespace steep::python
