// Steep's typed errors as Python exceptions, with the parts of their message as attributes.
#include <nanobind/stl/string.h>

#include <exception>

#include "bindings.h"
#include "steep/error.h"

namespace steep::python {
namespace {

// Created once, never freed: exceptions may be raised for as long as the process lives.
struct Types {
  PyObject* error;
  PyObject* model;
  PyObject* shape;
  PyObject* data;
  PyObject* provider;
  PyObject* checkpoint;
  PyObject* memory;
  PyObject* io;
  PyObject* internal;
};
Types types;

PyObject* make(nb::module_& m, const char* name, const char* doc, PyObject* builtin) {
  const std::string full = std::string("steep.") + name;
  nb::object bases = types.error == nullptr ? nb::borrow(builtin)
                     : builtin == nullptr
                         ? nb::borrow(types.error)
                         : nb::object(nb::make_tuple(nb::handle(types.error), nb::handle(builtin)));
  PyObject* type = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr);
  if (type == nullptr) nb::raise_python_error();
  m.attr(name) = nb::handle(type);
  return type;
}

void raise(PyObject* type, const Error& e) {
  try {
    nb::object exception = nb::handle(type)(e.what());
    exception.attr("what") = e.parts().what;
    exception.attr("node") = e.parts().node;
    exception.attr("op") = e.parts().op;
    exception.attr("expected") = e.parts().expected;
    exception.attr("received") = e.parts().received;
    exception.attr("remedy") = e.parts().remedy;
    PyErr_SetObject(type, exception.ptr());
  } catch (nb::python_error& failure) {
    failure.restore();
  }
}

void translate(const std::exception_ptr& p, void*) {
  try {
    std::rethrow_exception(p);
  } catch (const ModelError& e) {
    raise(types.model, e);
  } catch (const ShapeError& e) {
    raise(types.shape, e);
  } catch (const DataError& e) {
    raise(types.data, e);
  } catch (const ProviderError& e) {
    raise(types.provider, e);
  } catch (const CheckpointError& e) {
    raise(types.checkpoint, e);
  } catch (const OutOfMemoryError& e) {
    raise(types.memory, e);
  } catch (const IoError& e) {
    raise(types.io, e);
  } catch (const InternalError& e) {
    raise(types.internal, e);
  } catch (const Error& e) {
    raise(types.error, e);
  }
}

}  // namespace

void init_errors(nb::module_& m) {
  types.error = make(
      m, "Error",
      "Base of everything that Steep raises. Attributes, each a string and empty where it does "
      "not apply: what, node, op, expected, received, remedy.",
      PyExc_Exception);
  nb::handle base(types.error);
  for (const char* name : {"what", "node", "op", "expected", "received", "remedy"})
    base.attr(name) = "";
  types.model = make(m, "ModelError", "The model cannot be read, exported or trained.", nullptr);
  types.shape =
      make(m, "ShapeError", "A shape or dtype disagrees with the model.", PyExc_ValueError);
  types.data = make(m, "DataError", "The values fed are wrong.", PyExc_ValueError);
  types.provider = make(m, "ProviderError", "No kernel for a node, or the device failed.", nullptr);
  types.checkpoint =
      make(m, "CheckpointError", "A checkpoint is damaged or belongs to another model.", nullptr);
  types.memory = make(m, "OutOfMemoryError", "Memory could not be had.", PyExc_MemoryError);
  types.io = make(m, "IoError", "A file could not be read or written.", PyExc_OSError);
  types.internal = make(m, "InternalError", "A bug in Steep; please report it.", nullptr);
  nb::register_exception_translator(translate);
}

}  // namespace steep::python
