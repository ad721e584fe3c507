// Limits for Python, and Ctrl-C during calls to the engine.
#include "steep/limits.h"

#include <nanobind/stl/optional.h>

#include <optional>

#include "bindings.h"

namespace steep::python {
namespace {

unsigned long main_thread = 0;
std::optional<nb::python_error> pending_error;  // by a signal handler; used only in the main thread

/// Python runs signal handlers only in its main thread, and only when asked. Returns true if one
/// raised.
bool handler_raises() {
  if (PyThread_get_thread_ident() != main_thread || Py_IsInitialized() == 0) return false;
  const nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() == 0) return false;
  pending_error.emplace();
  return true;
}

}  // namespace

void raise_interrupt() {
  if (!pending_error) return PyErr_SetNone(PyExc_KeyboardInterrupt);
  nb::python_error error = std::move(*pending_error);
  pending_error.reset();
  error.restore();
}

void init_limits(nb::module_& m) {
  nb::class_<Limits>(m, "Limits",
                     "Bounds on what a model, its steps and its data may take. Exceeding one "
                     "raises an error that names it, before the memory or the time is taken.\n\n"
                     "max_bytes: of a model file with its tensors; of a step's parameters, "
                     "constants, intermediate values and results together; of any one value; of "
                     "what one loop or sequence holds. By default three quarters of what the "
                     "process may have, or STEEP_MAX_BYTES.\n"
                     "max_nodes: of a file, and of every graph made of it.\n"
                     "max_inlined: nodes that calls of functions add; a branch or a loop's body "
                     "counts for 16.\n"
                     "max_depth: of graphs and function calls within one another.\n"
                     "max_iterations: of one loop.")
      .def(
          "__init__",
          [](Limits* self, std::optional<size_t> max_bytes, std::optional<size_t> max_nodes,
             std::optional<size_t> max_inlined, std::optional<int> max_depth,
             std::optional<int64_t> max_iterations) {
            auto* limits = new (self) Limits();
            if (max_bytes) limits->max_bytes = *max_bytes;
            if (max_nodes) limits->max_nodes = *max_nodes;
            if (max_inlined) limits->max_inlined = *max_inlined;
            if (max_depth) limits->max_depth = *max_depth;
            if (max_iterations) limits->max_iterations = *max_iterations;
          },
          nb::kw_only(), nb::arg("max_bytes") = nb::none(), nb::arg("max_nodes") = nb::none(),
          nb::arg("max_inlined") = nb::none(), nb::arg("max_depth") = nb::none(),
          nb::arg("max_iterations") = nb::none())
      .def_rw("max_bytes", &Limits::max_bytes)
      .def_rw("max_nodes", &Limits::max_nodes)
      .def_rw("max_inlined", &Limits::max_inlined)
      .def_rw("max_depth", &Limits::max_depth)
      .def_rw("max_iterations", &Limits::max_iterations);
  nb::object thread = nb::module_::import_("threading").attr("main_thread")();
  main_thread = nb::cast<unsigned long>(thread.attr("ident"));
  set_interrupt_check(handler_raises);
}

}  // namespace steep::python
