#include "bindings.h"
#include "ops/metadata_keys.h"
#include "runtime/budget.h"
#include "runtime/memory.h"

// One line per file.
#define STEEP_BINDINGS(X) \
  X(errors)               \
  X(limits)               \
  X(providers)            \
  X(tensor)               \
  X(program)              \
  X(session)              \
  X(parallel)             \
  X(check)                \
  X(inference)            \
  X(gradient)             \
  X(gradient_session)     \
  X(custom_ops)           \
  X(curves)               \
  X(images)               \
  X(disk)                 \
  X(logs)

#ifdef STEEP_FOR_TESTS
#define STEEP_MORE_BINDINGS(X) X(for_tests)
#else
#define STEEP_MORE_BINDINGS(X)
#endif

namespace steep::python {
#define STEEP_DECLARE(stem) void init_##stem(nb::module_& m);
STEEP_BINDINGS(STEEP_DECLARE)
STEEP_MORE_BINDINGS(STEEP_DECLARE)
#undef STEEP_DECLARE
}  // namespace steep::python

namespace {

/// The attributes of the module that was imported first. A process has one engine, and its types
/// can be registered once: an import after the module left sys.modules gets the same objects.
PyObject* first = nullptr;

void copy_first(nanobind::module_& m) {
  for (auto [name, value] : nanobind::borrow<nanobind::dict>(first)) {
    if (!nanobind::hasattr(m, name)) m.attr(name) = value;
  }
}

}  // namespace

NB_MODULE(_steep, m) {
  if (first != nullptr) {
    copy_first(m);
    return;
  }
  // A variable that cannot be read is an error now, before types are made.
  steep::default_max_bytes();
  steep::leaves_malloc_alone();
  m.doc() = "Steep's engine. Use the package `steep`; this module is its compiled part.";
  m.attr("__version__") = STEEP_VERSION;  // steep/extension.py compares it with its own version
  // Keys that captures write into the metadata of nodes (src/ops/metadata_keys.h).
  m.attr("STOP_GRADIENT_KEY") = steep::kStopGradientKey;
  m.attr("DIGITS_KEY") = steep::kDigitsKey;
  m.attr("SAMPLE_VARIANCE_KEY") = steep::kSampleVarianceKey;
  // If a loss is still in use when the process ends, PyTorch keeps its graph, and with it Steep
  // objects. nanobind would report these to the user as leaks.
  nanobind::set_leak_warnings(false);
#define STEEP_INIT(stem) steep::python::init_##stem(m);
  STEEP_BINDINGS(STEEP_INIT)
  STEEP_MORE_BINDINGS(STEEP_INIT)
#undef STEEP_INIT
  first = nanobind::object(m.attr("__dict__")).release().ptr();
}
