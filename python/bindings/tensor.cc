// Tensor ↔ DLPack and the buffer protocol, without copies.
#include "steep/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "bindings.h"
#include "data/convert.h"
#include "steep/error.h"

namespace steep::python {
namespace {

// The structures of DLPack (github.com/dmlc/dlpack), version 0.8 and 1.x.
struct DLTensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};
struct DLManagedTensorVersioned {
  uint32_t major;
  uint32_t minor;
  void* context;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor tensor;
};
constexpr int32_t kCpu = 1;
// Flags of DLManagedTensorVersioned.
constexpr uint64_t kReadOnly = 1;
constexpr uint64_t kCopied = 2;

struct Kind {
  DType dtype;
  uint8_t code;  // DLPack: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool, 10 to 14 floats of 8 bits
  const char* format;  // of the buffer protocol; null where it has none
};
constexpr uint8_t kNoCode = 255;  // DLPack has no such type, or only packed
constexpr std::array<Kind, 25> kKinds{{{DType::f32, 2, "f"},
                                       {DType::f64, 2, "d"},
                                       {DType::f16, 2, "e"},
                                       {DType::bf16, 4, nullptr},
                                       {DType::boolean, 6, "?"},
                                       {DType::i8, 0, "b"},
                                       {DType::i16, 0, "h"},
                                       {DType::i32, 0, "i"},
                                       {DType::i64, 0, "l"},
                                       {DType::u8, 1, "B"},
                                       {DType::u16, 1, "H"},
                                       {DType::u32, 1, "I"},
                                       {DType::u64, 1, "L"},
                                       {DType::f8e4m3fn, 10, nullptr},
                                       {DType::f8e4m3fnuz, 11, nullptr},
                                       {DType::f8e5m2, 12, nullptr},
                                       {DType::f8e5m2fnuz, 13, nullptr},
                                       {DType::f8e8m0, 14, nullptr},
                                       {DType::f6e2m3, kNoCode, nullptr},
                                       {DType::f6e3m2, kNoCode, nullptr},
                                       {DType::f4e2m1, kNoCode, nullptr},
                                       {DType::u4, kNoCode, nullptr},
                                       {DType::i4, kNoCode, nullptr},
                                       {DType::u2, kNoCode, nullptr},
                                       {DType::i2, kNoCode, nullptr}}};

const Kind& kind_of(DType dtype) {
  for (const Kind& k : kKinds) {
    if (k.dtype == dtype) return k;
  }
  throw InternalError("A tensor without a dtype cannot be given to Python.");
}

[[noreturn]] void refuse(const char* name, std::string received, std::string remedy = "") {
  throw DataError({.what = *name == '\0' ? "An array cannot be used."
                                         : fmt::format("The array for '{}' cannot be used.", name),
                   .expected = "a dense array of numbers in CPU memory (NumPy, PyTorch, DLPack)",
                   .received = std::move(received),
                   .remedy = std::move(remedy)});
}

/// Copies a strided array to a new contiguous one. Strides in bytes.
Tensor gather(DType dtype, const Dims& dims, const char* data,
              const std::vector<int64_t>& strides) {
  Tensor out = Tensor::empty(dtype, dims);
  if (out.size() == 0) return out;
  const size_t item = size_of(dtype);
  auto* dst = static_cast<char*>(out.data());
  const size_t rank = dims.size();
  const int64_t row = rank == 0 ? 1 : dims.back();
  const int64_t step = rank == 0 ? 0 : strides.back();
  std::vector<int64_t> index(rank, 0);
  const char* src = data;
  for (int64_t offset = 0; offset < out.size(); offset += row) {
    if (step == static_cast<int64_t>(item)) {
      std::memcpy(dst, src, item * static_cast<size_t>(row));
      dst += item * static_cast<size_t>(row);
    } else {
      for (int64_t i = 0; i < row; ++i, dst += item) std::memcpy(dst, src + i * step, item);
    }
    for (size_t d = rank < 2 ? 0 : rank - 1; d-- > 0;) {  // the next row
      src += strides[d];
      if (++index[d] < dims[d]) break;
      src -= strides[d] * dims[d];
      index[d] = 0;
    }
  }
  return out;
}

bool contiguous(const Dims& dims, const std::vector<int64_t>& strides, size_t item) {
  auto expected = static_cast<int64_t>(item);
  for (size_t d = dims.size(); d-- > 0;) {
    if (dims[d] == 0) return true;
    if (dims[d] != 1 && strides[d] != expected) return false;
    expected *= dims[d];
  }
  return true;
}

/// Wraps contiguous bytes, copies others. After a copy, `owner` is released at once.
Tensor adopt(DType dtype, Dims dims, char* data, const std::vector<int64_t>& strides,
             std::shared_ptr<void> owner, std::string* unwritable) {
  if (contiguous(dims, strides, size_of(dtype))) {
    return Tensor::wrap(dtype, std::move(dims), data, std::move(owner));
  }
  if (unwritable != nullptr) {
    *unwritable = fmt::format("an array that is not contiguous: shape {}, strides of [{}] bytes",
                              to_string(dims), fmt::join(strides, ", "));
  }
  return gather(dtype, dims, data, strides);
}

Tensor from_buffer(nb::handle array, const char* name, std::string* unwritable) {
  auto release = [](Py_buffer* view) {
    if (Py_IsInitialized()) {
      nb::gil_scoped_acquire gil;
      PyBuffer_Release(view);
    }
    delete view;
  };
  auto raw = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(array.ptr(), raw.get(), PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    refuse(name, fmt::format("a {}", nb::type_name(array.type()).c_str()),
           "convert it with numpy.asarray to one of the dtypes of ONNX");
  }
  std::shared_ptr<Py_buffer> view(raw.release(), release);
  const char* format = view->format == nullptr ? "B" : view->format;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  DType dtype = DType::undefined;
  if (format[0] != '\0' && format[1] == '\0') {
    const char code = *format == 'q' ? 'l' : *format == 'Q' ? 'L' : *format;  // by size, see below
    for (const Kind& k : kKinds) {
      if (k.format != nullptr && k.format[0] == code) dtype = k.dtype;
    }
  }
  if (dtype == DType::undefined || size_of(dtype) != static_cast<size_t>(view->itemsize)) {
    refuse(name,
           fmt::format("an array with elements of format '{}'", view->format ? view->format : "B"),
           "convert it with astype to one of the dtypes of ONNX");
  }
  Dims dims(view->shape, view->shape + view->ndim);
  std::vector<int64_t> strides(view->strides, view->strides + view->ndim);
  auto* data = static_cast<char*>(view->buf);
  if (unwritable != nullptr && view->readonly != 0) *unwritable = "a read-only array";
  return adopt(dtype, std::move(dims), data, strides, std::move(view), unwritable);
}

/// NumPy's masked arrays hand out the numbers below their mask, too.
void refuse_masked(nb::handle array, const char* name) {
  static std::atomic<PyObject*> plain{nullptr};  // numpy.ndarray, once there was one
  PyObject* const type = array.type().ptr();
  if (type == plain.load(std::memory_order_relaxed)) return;
  if (nb::inst_name(array).equal(nb::str("numpy.ndarray"))) {
    Py_IncRef(type);  // it is never freed, so no other type gets its address
    plain.store(type, std::memory_order_relaxed);
    return;
  }
  const nb::object mask = nb::getattr(array, "mask", nb::none());
  if (!nb::hasattr(mask, "any") || !nb::cast<bool>(nb::bool_(mask.attr("any")()))) return;
  refuse(name, "an array with masked elements", "Give them a value: array.filled(value)");
}

/// Converts a DLTensor. `owner` keeps its memory alive.
Tensor from_dltensor(const DLTensor& t, std::shared_ptr<void> owner, const char* name,
                     std::string* unwritable) {
  if (t.device_type != kCpu) {
    refuse(name, fmt::format("an array on device type {}", t.device_type), "move it to the CPU");
  }
  DType dtype = DType::undefined;
  for (const Kind& k : kKinds) {
    if (k.code == t.code && size_of(k.dtype) * 8 == t.bits && t.lanes == 1) dtype = k.dtype;
  }
  if (dtype == DType::undefined) {
    refuse(name, fmt::format("DLPack type code {} with {} bits", t.code, t.bits),
           "convert it to one of the dtypes of ONNX");
  }
  Dims dims(t.shape, t.shape + t.ndim);
  const auto item = static_cast<int64_t>(size_of(dtype));
  std::vector<int64_t> strides(dims.size());
  int64_t dense = item;
  for (size_t d = dims.size(); d-- > 0;) {
    strides[d] = t.strides == nullptr ? dense : t.strides[d] * item;
    dense *= dims[d];
  }
  // PyTorch uses a null pointer for an array without elements, but null means an absent operand
  // here.
  static char nothing;
  char* const data = t.data == nullptr ? &nothing : static_cast<char*>(t.data);
  if (t.data == nullptr && std::find(dims.begin(), dims.end(), 0) == dims.end()) {
    refuse(name, "an array whose memory was freed", "allocate it again before the call");
  }
  return adopt(dtype, std::move(dims), data + t.byte_offset, strides, std::move(owner), unwritable);
}

/// Takes the tensor out of a capsule and marks the capsule as used.
template <typename Managed>
Tensor consume(nb::handle capsule, const char* label, const char* used_label, const char* name,
               std::string* unwritable) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), label));
  if (managed == nullptr || PyCapsule_SetName(capsule.ptr(), used_label) != 0)
    nb::raise_python_error();
  std::shared_ptr<void> owner(managed, [](void* p) {
    auto* m = static_cast<Managed*>(p);
    if (m->deleter != nullptr && Py_IsInitialized()) {  // a deleter may need the GIL
      nb::gil_scoped_acquire gil;
      m->deleter(m);
    }
  });
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
    if (managed->major != 1) refuse(name, fmt::format("DLPack version {}", managed->major));
    if (unwritable != nullptr && (managed->flags & kReadOnly) != 0) {
      *unwritable = "a read-only array";
    } else if (unwritable != nullptr && (managed->flags & kCopied) != 0) {
      *unwritable = "a copy that its library made to hand it out";
    }
  }
  return from_dltensor(managed->tensor, std::move(owner), name, unwritable);
}

Tensor from_capsule(nb::handle capsule, const char* name, std::string* unwritable) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    return consume<DLManagedTensor>(capsule, "dltensor", "used_dltensor", name, unwritable);
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    return consume<DLManagedTensorVersioned>(capsule, "dltensor_versioned",
                                             "used_dltensor_versioned", name, unwritable);
  }
  refuse(name, "a capsule that is not DLPack's, or was used before");
}

/// A versioned capsule, which says whether the memory is writable; older libraries only have the
/// other kind.
nb::object versioned(nb::handle array) {
  try {
    return array.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    return array.attr("__dlpack__")();
  }
}

/// What a library hands out of an array. An array that it cannot hand out is refused in its words.
nb::object capsule_of(nb::handle array, const char* name, std::string* unwritable) {
  try {
    // PyTorch refuses to export a tensor that requires a gradient; only its data is needed here.
    nb::object plain = nb::borrow(array);
    if (nb::hasattr(array, "requires_grad") && nb::cast<bool>(array.attr("requires_grad"))) {
      plain = array.attr("detach")();
    }
    // It exports numbers that it negates when it reads them (z.conj().imag) as they are stored.
    if (nb::hasattr(plain, "is_neg") && nb::cast<bool>(plain.attr("is_neg")())) {
      plain = plain.attr("resolve_neg")();
      if (unwritable != nullptr) *unwritable = "a tensor that PyTorch negates when it reads it";
    }
    return unwritable == nullptr ? plain.attr("__dlpack__")() : versioned(plain);
  } catch (nb::python_error& error) {
    if (error.matches(PyExc_MemoryError) || !error.matches(PyExc_Exception)) throw;
    const nb::str said(error.value());
    refuse(name, fmt::format("a {}: {}", nb::type_name(array.type()).c_str(), said.c_str()));
  }
}

/// The content of a capsule that Steep made.
template <typename Managed>
struct Exported {
  Managed managed{};
  Tensor tensor;
  std::vector<int64_t> strides;
};

template <typename Managed>
nb::object export_capsule(const Tensor& tensor, const char* label) {
  if (kind_of(tensor.dtype()).code == kNoCode) {
    throw DataError({.what = "DLPack cannot carry a tensor of this dtype.",
                     .received = std::string(name_of(tensor.dtype())),
                     .remedy = "Take it as a NumPy array: tensor.numpy()."});
  }
  auto owner = std::make_unique<Exported<Managed>>();
  owner->tensor = tensor;
  const Dims& dims = owner->tensor.dims();
  owner->strides.resize(dims.size());
  int64_t dense = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    owner->strides[d] = dense;
    dense *= dims[d];
  }
  owner->managed.tensor = {.data = owner->tensor.data(),
                           .device_type = kCpu,
                           .device_id = 0,
                           .ndim = static_cast<int32_t>(dims.size()),
                           .code = kind_of(tensor.dtype()).code,
                           .bits = static_cast<uint8_t>(size_of(tensor.dtype()) * 8),
                           .lanes = 1,
                           .shape = const_cast<int64_t*>(dims.data()),
                           .strides = owner->strides.data(),
                           .byte_offset = 0};
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) owner->managed.major = 1;
  owner->managed.context = owner.get();
  owner->managed.deleter = [](Managed* m) { delete static_cast<Exported<Managed>*>(m->context); };
  PyObject* capsule = PyCapsule_New(&owner->managed, label, [](PyObject* self) {
    // Only an unused capsule still owns its tensor.
    const char* own = std::is_same_v<Managed, DLManagedTensor> ? "dltensor" : "dltensor_versioned";
    if (!PyCapsule_IsValid(self, own)) return;
    auto* m = static_cast<Managed*>(PyCapsule_GetPointer(self, own));
    m->deleter(m);
  });
  if (capsule == nullptr) nb::raise_python_error();
  owner.release();
  return nb::steal(capsule);
}

/// The `bf_getbuffer` slot: NumPy and memoryview read a Tensor through it.
int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  auto* tensor = nb::inst_ptr<Tensor>(nb::handle(self));
  const char* format = kind_of(tensor->dtype()).format;
  if (format == nullptr) {
    PyErr_Format(PyExc_BufferError, "the buffer protocol has no %s; use numpy()",
                 std::string(name_of(tensor->dtype())).c_str());
    return -1;
  }
  // shape and strides are in one block, which the release function frees
  const size_t rank = tensor->dims().size();
  auto block = std::make_unique<Py_ssize_t[]>(2 * rank + 1);
  auto dense = static_cast<Py_ssize_t>(size_of(tensor->dtype()));
  for (size_t d = rank; d-- > 0;) {
    block[d] = tensor->dims()[d];
    block[rank + d] = dense;
    dense *= block[d];
  }
  view->buf = tensor->data();
  view->len = static_cast<Py_ssize_t>(tensor->nbytes());
  view->itemsize = static_cast<Py_ssize_t>(size_of(tensor->dtype()));
  view->readonly = 0;
  view->ndim = static_cast<int>(rank);
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format) : nullptr;
  view->shape = (flags & PyBUF_ND) != 0 ? block.get() : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? block.get() + rank : nullptr;
  view->suboffsets = nullptr;
  view->internal = block.release();
  view->obj = self;
  Py_INCREF(self);
  return 0;
}

void release_buffer(PyObject*, Py_buffer* view) {
  delete[] static_cast<Py_ssize_t*>(view->internal);
}

nb::object to_numpy(nb::handle self) {
  nb::module_ numpy = nb::module_::import_("numpy");
  const Tensor& t = nb::cast<const Tensor&>(self);
  if (kind_of(t.dtype()).format != nullptr)
    return numpy.attr("asarray")(nb::steal(PyMemoryView_FromObject(self.ptr())));
  // NumPy has no such type: export the bits as integers, then view them as the type of ml_dtypes.
  const DType bits_type = size_of(t.dtype()) == 1 ? DType::u8 : DType::u16;
  nb::object bits =
      nb::cast(Tensor::wrap(bits_type, t.dims(), const_cast<void*>(t.data()), t.owner()));
  return numpy.attr("asarray")(bits).attr("view")(
      nb::module_::import_("ml_dtypes").attr(std::string(name_of(t.dtype())).c_str()));
}

/// The dtype of an array of ml_dtypes, which has no buffer format; otherwise undefined.
DType extended_dtype(nb::handle array) {
  const nb::object dtype = nb::getattr(array, "dtype", nb::none());
  const std::string_view name = nb::str(nb::handle(dtype)).c_str();
  for (const Kind& k : kKinds) {
    if (k.format == nullptr && name_of(k.dtype) == name) return k.dtype;
  }
  return DType::undefined;
}

}  // namespace

DType dtype_from(const std::string& name) {
  for (const Kind& k : kKinds) {
    if (name_of(k.dtype) == name) return k.dtype;
  }
  throw DataError({.what = "A dtype is unknown.",
                   .expected = "a name as NumPy spells it, such as float32 or int64",
                   .received = name});
}

Tensor to_tensor(nb::handle array, const char* name, std::string* unwritable) {
  if (unwritable != nullptr) unwritable->clear();
  if (nb::isinstance<Tensor>(array)) return nb::cast<Tensor>(array);
  if (PyCapsule_CheckExact(array.ptr())) return from_capsule(array, name, unwritable);
  if (PyObject_CheckBuffer(array.ptr())) {
    refuse_masked(array, name);
    if (const DType dtype = extended_dtype(array); dtype != DType::undefined) {
      const char* bits_type = size_of(dtype) == 1 ? "uint8" : "uint16";
      Tensor bits = from_buffer(array.attr("view")(bits_type), name, unwritable);
      return Tensor::wrap(dtype, bits.dims(), bits.data(), bits.owner());
    }
    return from_buffer(array, name, unwritable);
  }
  if (nb::hasattr(array, "__dlpack__")) {
    return from_capsule(capsule_of(array, name, unwritable), name, unwritable);
  }
  if (nb::isinstance<nb::float_>(array) || nb::isinstance<nb::int_>(array) ||
      nb::isinstance<nb::list>(array) || nb::isinstance<nb::tuple>(array)) {
    return from_buffer(nb::module_::import_("numpy").attr("asarray")(array), name, unwritable);
  }
  refuse(name, fmt::format("a {}", nb::type_name(array.type()).c_str()));
}

std::map<std::string, Tensor> named(const nb::dict& arrays) {
  std::map<std::string, Tensor> tensors;
  for (auto [key, value] : arrays) {
    const auto name = nb::cast<std::string>(key);
    tensors[name] = to_tensor(value, name.c_str());
  }
  return tensors;
}

nb::object to_capsule(const Tensor& tensor) {
  return export_capsule<DLManagedTensor>(tensor, "dltensor");
}

void init_tensor(nb::module_& m) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                                {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                                {0, nullptr}};
  nb::class_<Tensor>(
      m, "Tensor", nb::type_slots(slots),
      "A dense array that crosses to NumPy, PyTorch and others without a copy: by DLPack "
      "(torch.from_dlpack(t)), by the buffer protocol (numpy.asarray(t)) or t.numpy().")
      .def(
          "__init__",
          [](Tensor* self, nb::handle array) {
            std::string unwritable;
            Tensor tensor = to_tensor(array, "", &unwritable);
            new (self) Tensor(unwritable.empty() ? std::move(tensor) : tensor.clone());
          },
          nb::arg("array").none(),
          "Shares the bytes of an array in CPU memory; copies what is read-only or not contiguous.")
      .def_prop_ro(
          "shape",
          [](const Tensor& t) {
            nb::list dims;
            for (int64_t d : t.dims()) dims.append(d);
            return nb::tuple(dims);
          },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro(
          "dtype", [](const Tensor& t) { return std::string(name_of(t.dtype())); },
          "Name of the element type as NumPy spells it.")
      .def_prop_ro("ndim", [](const Tensor& t) { return t.dims().size(); })
      .def_prop_ro("size", &Tensor::size)
      .def_prop_ro("nbytes", &Tensor::nbytes)
      .def_prop_ro(
          "data_ptr", [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data()); },
          "Address of the first element.")
      .def(
          "__dlpack__",
          [](const Tensor& t, nb::handle stream, nb::handle max_version, nb::handle,
             nb::handle copy) {
            if (!stream.is_none()) throw DataError("A CPU tensor takes no stream.");
            Tensor out = !copy.is_none() && nb::cast<bool>(copy) ? t.clone() : t;
            const bool versioned =
                !max_version.is_none() && nb::cast<int>(nb::object(max_version[0])) >= 1;
            return versioned ? export_capsule<DLManagedTensorVersioned>(out, "dltensor_versioned")
                             : to_capsule(out);
          },
          nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
          nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none())
      .def(
          "__dlpack_device__", [](const Tensor&) { return nb::make_tuple(kCpu, 0); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def(
          "numpy", [](nb::handle self) { return to_numpy(self); },
          nb::sig("def numpy(self) -> typing.Any"),
          "NumPy array of the same bytes (bfloat16 and what is narrower need the package "
          "ml_dtypes).")
      .def(
          "__array__",
          [](nb::handle self, nb::handle dtype, nb::handle copy) {
            nb::object array = to_numpy(self);
            if (!dtype.is_none()) array = array.attr("astype")(dtype, nb::arg("copy") = false);
            if (!copy.is_none() && nb::cast<bool>(copy)) array = array.attr("copy")();
            return array;
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(),
          nb::sig(
              "def __array__(self, dtype: object = None, copy: bool | None = None) -> typing.Any"))
      .def("__float__", [](nb::handle self) { return nb::float_(to_numpy(self).attr("item")()); })
      .def("__repr__", [](const Tensor& t) {
        return fmt::format("steep.Tensor({}{})", name_of(t.dtype()), to_string(t.dims()));
      });
  m.def(
      "convert",
      [](nb::handle array, const std::string& dtype, const std::string& name) {
        const Tensor tensor = to_tensor(array, name.c_str());
        const DType target = dtype_from(dtype);
        const nb::gil_scoped_release release;
        return convert(tensor, target, name);
      },
      nb::arg("array"), nb::arg("dtype"), nb::arg("name"),
      "Returns an array in another dtype, by NumPy's name of it, as sessions convert what they are "
      "fed: floats to floats, rounded to nearest, integers to integers and floats. Shares the "
      "bytes where it has the dtype. Raises DataError naming `name` for floats as integers, for "
      "integers that do not fit, and for finite numbers that would become infinite.");
}

}  // namespace steep::python
