// Translates Steep's errors to the exceptions of steep/errors.py.
#include <nanobind/stl/string.h>

#include <exception>
#include <new>

#include "bindings.h"
#include "steep/error.h"
#include "steep/parallel.h"

namespace steep::python {
namespace {

void raise(const char* name, const Error& e) {
  try {
    const ErrorParts& p = e.parts();
    nb::object type = nb::module_::import_("steep.errors").attr(name);
    nb::object exception = type(p.what, nb::arg("node") = p.node, nb::arg("op") = p.op,
                                nb::arg("expected") = p.expected, nb::arg("received") = p.received,
                                nb::arg("remedy") = p.remedy);
    PyErr_SetObject(type.ptr(), exception.ptr());
  } catch (nb::python_error& failure) {
    failure.restore();
  }
}

void translate(const std::exception_ptr& p, void*) {
  try {
    std::rethrow_exception(p);
  } catch (const InterruptedError&) {
    raise_interrupt();
  } catch (const ModelError& e) {
    raise("ModelError", e);
  } catch (const ShapeError& e) {
    raise("ShapeError", e);
  } catch (const DataError& e) {
    raise("DataError", e);
  } catch (const PeerLostError& e) {
    raise("PeerLostError", e);
  } catch (const ProviderError& e) {
    raise("ProviderError", e);
  } catch (const CheckpointError& e) {
    raise("CheckpointError", e);
  } catch (const OutOfMemoryError& e) {
    raise("OutOfMemoryError", e);
  } catch (const IoError& e) {
    raise("IoError", e);
  } catch (const InternalError& e) {
    raise("InternalError", e);
  } catch (const Error& e) {
    raise("Error", e);
  } catch (const std::bad_alloc&) {
    raise("OutOfMemoryError", OutOfMemoryError("There is not enough memory."));
  }
}

}  // namespace

void init_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace steep::python
