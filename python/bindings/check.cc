// check(): every obstacle to training a model, at once.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include "autodiff/gradient.h"
#include "bindings.h"
#include "model/import.h"

namespace steep::python {
namespace {

nb::list obstacles(Graph& graph) {
  std::vector<Obstacle> found;
  {
    const nb::gil_scoped_release release;
    std::vector<Value> outputs;
    std::vector<Value> wrt;
    for (const Output& o : graph.outputs()) {
      if (is_float(o.value.dtype())) outputs.push_back(o.value);
    }
    for (uint32_t i = 0; i < graph.value_count(); ++i) {
      const Value v = graph.value(i);
      if (v.role() == Role::constant && is_float(v.dtype()) && !v.tensor()->dims().empty()) {
        wrt.push_back(v);
      }
    }
    found = find_obstacles(graph, outputs, wrt);
  }
  nb::list out;
  for (const Obstacle& o : found) out.append(o);
  return out;
}

}  // namespace

void init_check(nb::module_& m) {
  nb::class_<Obstacle>(m, "Obstacle",
                       "One operator that has no gradient but stands on a path that needs one.")
      .def_ro("op", &Obstacle::op)
      .def_ro("node", &Obstacle::node)
      .def_ro("path", &Obstacle::path, "What depends on it.")
      .def_ro("remedy", &Obstacle::remedy)
      .def("__repr__", [](const Obstacle& o) {
        return o.op + " node '" + o.node + "' (" + o.path + "): " + o.remedy;
      });
  m.def(
      "check",
      [](const nb::bytes& model) {
        const std::span data(reinterpret_cast<const std::byte*>(model.c_str()), model.size());
        Graph graph = import_model(data).graph;
        return obstacles(graph);
      },
      nb::arg("model"), nb::sig("def check(model: bytes) -> list[Obstacle]"));
  m.def(
      "check",
      [](const std::filesystem::path& model) {
        Graph graph = import_model(model).graph;
        return obstacles(graph);
      },
      nb::arg("model"), nb::sig("def check(model: str) -> list[Obstacle]"));
}

}  // namespace steep::python
