// GradientSession: named arrays in, tensors out. python/steep/session/gradient_session.py is its
// Python API.
#include "steep/gradient_session.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "steep/error.h"

namespace steep::python {
namespace {

using Session = GradientSession;

/// Converts arrays without copies, because the session must see later writes of its caller.
Session::Tensors shared(const nb::dict& arrays) {
  Session::Tensors tensors;
  for (auto [key, value] : arrays) {
    const auto name = nb::cast<std::string>(key);
    std::string why;
    tensors[name] = to_tensor(value, name.c_str(), &why);
    if (why.empty()) continue;
    throw DataError({.what = "The memory of a bound weight cannot be shared.",
                     .node = name,
                     .expected = "a writable, contiguous array",
                     .received = why,
                     .remedy = "Bind a copy of your own, numpy.array(w, order=\"C\"), or call "
                               "set_weights()."});
  }
  return tensors;
}

nb::dict to_dict(const Session::Tensors& tensors) {
  nb::dict out;
  for (const auto& [name, tensor] : tensors) out[name.c_str()] = tensor;
  return out;
}

nb::list to_list(const std::vector<Tensor>& tensors) {
  nb::list out;
  for (const Tensor& t : tensors) out.append(t);
  return out;
}

nb::tuple forward(Session& s, const nb::dict& arrays) {
  const Session::Tensors inputs = named(arrays);
  Session::Forward result;
  {
    const nb::gil_scoped_release release;
    result = s.forward(inputs);
  }
  return nb::make_tuple(to_list(result.outputs), nb::cast(std::move(result.run)));
}

nb::list eval(Session& s, const nb::dict& arrays) {
  const Session::Tensors inputs = named(arrays);
  std::vector<Tensor> outputs;
  {
    const nb::gil_scoped_release release;
    outputs = s.eval(inputs);
  }
  return to_list(outputs);
}

nb::dict backward(Session& s, Session::Run& run, const nb::dict& arrays) {
  const Session::Tensors gradients = named(arrays);
  Session::Tensors results;
  {
    const nb::gil_scoped_release release;
    results = s.backward(run, gradients);
  }
  return to_dict(results);
}

}  // namespace

void init_gradient_session(nb::module_& m) {
  nb::class_<GradientSessionOptions>(m, "GradientSessionOptions",
                                     "See include/steep/gradient_session.h.")
      .def(nb::init<>())
      .def_rw("wrt", &GradientSessionOptions::wrt)
      .def_rw("outputs", &GradientSessionOptions::outputs)
      .def_rw("borrow", &GradientSessionOptions::borrow)
      .def_rw("seed", &GradientSessionOptions::seed)
      .def_rw("threads", &GradientSessionOptions::threads)
      .def_rw("precision", &GradientSessionOptions::precision)
      .def_rw("memory_limit", &GradientSessionOptions::memory_limit)
      .def_rw("disabled_passes", &GradientSessionOptions::disabled_passes)
      .def_rw("limits", &GradientSessionOptions::limits)
      .def_rw("providers", &GradientSessionOptions::providers);
  nb::class_<Session::Run>(m, "GradientRun",
                           "One forward of a GradientSession, for one backward. Holds memory until "
                           "then, or until nobody holds it.");
  nb::class_<Session> session(m, "GradientSession");
  def_constructors<GradientSessionOptions>(session);
  def_plans(session);
  session
      .def("forward", &forward, nb::arg("inputs"),
           nb::sig("def forward(self, inputs: dict[str, object]) -> "
                   "tuple[list[Tensor], GradientRun]"))
      .def("eval", &eval, nb::arg("inputs"),
           nb::sig("def eval(self, inputs: dict[str, object]) -> list[Tensor]"))
      .def("backward", &backward, nb::arg("run"), nb::arg("output_gradients"),
           nb::sig("def backward(self, run: GradientRun, output_gradients: dict[str, object]) -> "
                   "dict[str, Tensor]"))
      .def("input_info", &Session::input_info, nb::sig("def input_info(self) -> list[TensorInfo]"),
           "What forward() must be fed.")
      .def("output_info", &Session::output_info,
           nb::sig("def output_info(self) -> list[TensorInfo]"), "What forward() returns.")
      .def("weight_info", &Session::weight_info,
           nb::sig("def weight_info(self) -> list[TensorInfo]"),
           "The initializers in `wrt`, in its order.")
      .def_prop_ro("differentiable", &Session::differentiable, "By output: may it have a gradient?")
      .def_prop_ro("weight_count", &Session::weight_count, "Number of elements of all weights.")
      .def(
          "weights", [](const Session& s) { return to_dict(s.weights()); },
          nb::sig("def weights(self) -> dict[str, Tensor]"), "Copies, by name.")
      .def(
          "set_weights", [](Session& s, const nb::dict& w) { s.set_weights(named(w)); },
          nb::arg("weights"), nb::sig("def set_weights(self, weights: dict[str, object]) -> None"),
          "Copies values in, after all were checked. Names left out keep their values. Runs that "
          "wait for their backward keep the weights that they ran with. Raises ModelError for an "
          "unknown name, ShapeError for another shape or dtype.")
      .def(
          "bind_weights", [](Session& s, const nb::dict& w) { s.bind_weights(shared(w)); },
          nb::arg("weights"), nb::sig("def bind_weights(self, weights: dict[str, object]) -> None"),
          "From now on forward() reads these weights where the arrays given have them, with what "
          "is "
          "written there. Raises as set_weights(), and DataError for an array that is not "
          "contiguous or not writable.")
      .def(
          "flatten", [](const Session& s, const nb::dict& t) { return s.flatten(named(t)); },
          nb::arg("tensors"), nb::sig("def flatten(self, tensors: dict[str, object]) -> Tensor"),
          "Of an array for each weight (weights, gradients): one of shape [weight_count], their "
          "elements in the order of weight_info(). Others may be there too. Raises DataError for a "
          "missing one, ShapeError for another type, or where the weights' dtypes differ.")
      .def(
          "bind_flat",
          [](Session& s, nb::handle flat) {
            nb::dict one;
            one["flat"] = flat;
            s.bind_weights(s.views(shared(one).at("flat")));
          },
          nb::arg("flat"), nb::sig("def bind_flat(self, flat: object) -> None"),
          "From now on all weights are read from one array of shape [weight_count], laid out as "
          "flatten() does it. Raises as bind_weights().");
}

}  // namespace steep::python
