#include "model/read/tensor_proto.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cstring>
#include <utility>

#include "model/read/quote.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/packing.h"
#include "steep/error.h"

namespace steep {
namespace {

static_assert(std::endian::native == std::endian::little, "raw_data is little-endian");

constexpr const char* kExportAgain =
    "Export the model again; its file does not follow the ONNX standard.";

int64_t parse_number(const std::string& text, const std::string& key, const std::string& name) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw ModelError({.what = "The external data of a tensor has a bad " + key + ".",
                      .node = quote(name),
                      .expected = "a number of bytes, not negative",
                      .received = "\"" + quote(text) + "\"",
                      .remedy = kExportAgain});
  }
  return value;
}

[[noreturn]] void wrong_size(const std::string& name, DType dtype, const Dims& dims,
                             std::string received) {
  throw ModelError({.what = "The data of a tensor does not fill its shape.",
                    .node = quote(name),
                    .expected = fmt::format("{} for {}{}", counted(element_count(dims), "element"),
                                            name_of(dtype), to_string(dims)),
                    .received = std::move(received),
                    .remedy = kExportAgain});
}

/// Converts elements of a typed field, each stored as one `To`.
template <typename To, typename Field>
Tensor from_field(const Field& field, const std::string& name, DType dtype, Dims dims) {
  if (field.size() != element_count(dims)) {
    wrong_size(name, dtype, dims, counted(field.size(), "element"));
  }
  Tensor tensor = Tensor::empty(dtype, std::move(dims));
  auto* to = static_cast<To*>(tensor.data());
  for (int i = 0; i < field.size(); ++i) to[i] = static_cast<To>(field.Get(i));
  return tensor;
}

Tensor from_raw(const std::string& raw, const std::string& name, DType dtype, Dims dims) {
  if (raw.size() != packed_bytes(dtype, element_count(dims))) {
    wrong_size(name, dtype, dims, counted(raw.size(), "byte"));
  }
  return unpack(dtype, std::move(dims), raw.data());
}

/// Such fields hold the packed bytes of raw data, one byte per number; 6-bit floats are not packed.
Tensor from_packed_field(const onnx::TensorProto& p, const std::string& name, DType dtype,
                         Dims dims) {
  if (bits_of(dtype) == 6) return from_field<uint8_t>(p.int32_data(), name, dtype, std::move(dims));
  std::string bytes;
  for (int32_t i : p.int32_data()) bytes.push_back(static_cast<char>(i));
  return from_raw(bytes, name, dtype, std::move(dims));
}

/// The field of each dtype: see the comments of TensorProto in onnx.proto.
Tensor from_fields(const onnx::TensorProto& p, const std::string& name, DType dtype, Dims dims) {
  switch (dtype) {
    case DType::f32: return from_field<float>(p.float_data(), name, dtype, std::move(dims));
    case DType::f64: return from_field<double>(p.double_data(), name, dtype, std::move(dims));
    case DType::i64: return from_field<int64_t>(p.int64_data(), name, dtype, std::move(dims));
    case DType::u64: return from_field<uint64_t>(p.uint64_data(), name, dtype, std::move(dims));
    case DType::u32: return from_field<uint32_t>(p.uint64_data(), name, dtype, std::move(dims));
    case DType::i32: return from_field<int32_t>(p.int32_data(), name, dtype, std::move(dims));
    case DType::i16: return from_field<int16_t>(p.int32_data(), name, dtype, std::move(dims));
    case DType::u16:
    case DType::f16:
    case DType::bf16: return from_field<uint16_t>(p.int32_data(), name, dtype, std::move(dims));
    case DType::i8: return from_field<int8_t>(p.int32_data(), name, dtype, std::move(dims));
    case DType::u8:
    case DType::f8e4m3fn:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2:
    case DType::f8e5m2fnuz:
    case DType::f8e8m0: return from_field<uint8_t>(p.int32_data(), name, dtype, std::move(dims));
    case DType::boolean: return from_field<bool>(p.int32_data(), name, dtype, std::move(dims));
    case DType::f6e2m3:
    case DType::f6e3m2:
    case DType::f4e2m1:
    case DType::u4:
    case DType::i4:
    case DType::u2:
    case DType::i2: return from_packed_field(p, name, dtype, std::move(dims));
    case DType::undefined: break;
  }
  throw InternalError({.what = "A tensor has no dtype.", .node = name});
}

/// Sets each bool to 0 or 1: C++ must not read other values.
void normalise_bools(Tensor& tensor) {
  auto* bytes = static_cast<uint8_t*>(tensor.data());
  for (int64_t i = 0; i < tensor.size(); ++i) bytes[i] = bytes[i] != 0;
}

}  // namespace

ExternalSlice slice_of(const onnx::TensorProto& proto, const std::string& name) {
  ExternalSlice slice;
  for (const auto& entry : proto.external_data()) {
    if (entry.key() == "location") slice.location = entry.value();
    if (entry.key() == "offset") slice.offset = parse_number(entry.value(), "offset", name);
    if (entry.key() == "length") slice.length = parse_number(entry.value(), "length", name);
  }
  return slice;
}

Dims dims_of(const onnx::TensorProto& proto, const std::string& name, DType dtype) {
  Dims dims(proto.dims().begin(), proto.dims().end());
  int64_t bytes = 0;
  try {
    if (__builtin_mul_overflow(element_count(dims), static_cast<int64_t>(size_of(dtype)), &bytes)) {
      throw ShapeError("too many bytes");
    }
  } catch (const ShapeError&) {
    const size_t limit = std::min<size_t>(dims.size(), 8);
    throw ModelError(
        {.what = "The shape of a tensor is impossible.",
         .node = quote(name),
         .expected = "extents that are not negative, with a product below 2^63",
         .received = to_string(Dims(dims.begin(), dims.begin() + static_cast<int64_t>(limit))) +
                     (limit < dims.size() ? fmt::format(" and {} more", dims.size() - limit) : ""),
         .remedy = kExportAgain});
  }
  return dims;
}

DType dtype_from_onnx(int32_t number, const std::string& name) {
  const auto dtype = static_cast<DType>(number);
  if (size_of(dtype) != 0) return dtype;
  const bool known = onnx::TensorProto_DataType_IsValid(number);
  throw ModelError(
      {.what = "The element type of a tensor is not supported.",
       .node = quote(name),
       .expected = "a float of 4 to 64 bits, an integer of 2 to 64 bits or bool",
       .received = known ? onnx::TensorProto_DataType_Name(number)
                         : fmt::format("element type number {}", number),
       .remedy =
           "Export the model with one of these types; take strings and complex numbers out."});
}

Tensor decode(const onnx::TensorProto& proto, const std::string& name, ExternalData& external) {
  const DType dtype = dtype_from_onnx(proto.data_type(), name);
  Dims dims = dims_of(proto, name, dtype);
  poll();
  Tensor tensor;
  if (proto.has_segment()) {
    throw ModelError(
        {.what = "A tensor is stored in segments.", .node = quote(name), .remedy = kExportAgain});
  }
  if (proto.data_location() == onnx::TensorProto::EXTERNAL) {
    const ExternalSlice slice = slice_of(proto, name);
    if (bits_of(dtype) < 8) {
      const auto bytes = static_cast<int64_t>(packed_bytes(dtype, element_count(dims)));
      const Tensor packed = external.read(name, slice, DType::u8, {bytes});
      tensor = unpack(dtype, std::move(dims), packed.data());
    } else {
      tensor = external.read(name, slice, dtype, std::move(dims));
    }
  } else if (proto.has_raw_data()) {
    tensor = from_raw(proto.raw_data(), name, dtype, std::move(dims));
  } else {
    return from_fields(proto, name, dtype, std::move(dims));
  }
  if (dtype == DType::boolean) normalise_bools(tensor);
  return tensor;
}

void TensorTable::count(const onnx::TensorProto& proto, const std::string& name) {
  const DType dtype = dtype_from_onnx(proto.data_type(), name);
  const auto size =
      static_cast<size_t>(element_count(dims_of(proto, name, dtype))) * size_of(dtype);
  if (size > max_bytes_ - bytes_) {
    throw ModelError({.what = "The model's tensors are too large.",
                      .node = quote(name),
                      .expected = fmt::format("at most {} bytes in all", max_bytes_),
                      .remedy = "If this size is intended, raise Limits::max_bytes."});
  }
  bytes_ += size;
}

void TensorTable::take(onnx::TensorProto* proto, const std::string& name) {
  count(*proto, name);
  keep(proto, decode(*proto, name, external_));
}

void TensorTable::take_sparse(const onnx::SparseTensorProto& sparse, const std::string& name,
                              onnx::TensorProto* dense) {
  auto fail = [&](std::string expected, std::string received) {
    throw ModelError({.what = "A sparse tensor cannot be read.",
                      .node = quote(name),
                      .expected = std::move(expected),
                      .received = std::move(received),
                      .remedy = kExportAgain});
  };
  dense->Clear();
  dense->set_name(name);
  dense->set_data_type(sparse.values().data_type());
  *dense->mutable_dims() = sparse.dims();
  count(*dense, name);
  const Tensor values = decode(sparse.values(), name, external_);
  const Tensor indices = decode(sparse.indices(), name, external_);
  Tensor tensor = Tensor::zeros(values.dtype(), dims_of(*dense, name, values.dtype()));
  const int64_t rank = static_cast<int64_t>(tensor.dims().size()), n = values.size();
  const bool linear = indices.dims() == Dims{n};
  if (values.dims().size() != 1 || indices.dtype() != DType::i64 ||
      !(linear || indices.dims() == Dims{n, rank})) {
    fail(fmt::format("values [N], and int64 indices [N] or [N, {}]", rank),
         fmt::format("values {}, {} indices {}", to_string(values.dims()), name_of(indices.dtype()),
                     to_string(indices.dims())));
  }
  const size_t width = size_of(values.dtype());
  const auto* at = indices.data<int64_t>();
  int64_t before = -1;
  for (int64_t i = 0; i < n; ++i) {
    int64_t place = linear ? at[i] : 0;
    for (int64_t axis = 0; !linear && axis < rank; ++axis) {
      const int64_t index = at[i * rank + axis], extent = tensor.dims()[static_cast<size_t>(axis)];
      if (index < 0 || index >= extent)
        fail(fmt::format("indices from 0 to {}", extent - 1), fmt::format("{}", index));
      place = place * extent + index;
    }
    if (place <= before || place >= tensor.size()) {
      fail(fmt::format("rising indices below {}", tensor.size()),
           fmt::format("{} after {}", place, before));
    }
    before = place;
    std::memcpy(static_cast<char*>(tensor.data()) + static_cast<size_t>(place) * width,
                static_cast<const char*>(values.data()) + static_cast<size_t>(i) * width, width);
  }
  keep(dense, std::move(tensor));
}

void TensorTable::take_sparse(onnx::AttributeProto* attribute, const std::string& name) {
  onnx::AttributeProto dense;
  dense.set_name("value");
  dense.set_type(onnx::AttributeProto::TENSOR);
  take_sparse(attribute->sparse_tensor(), name, dense.mutable_t());
  attribute->Swap(&dense);
}

void TensorTable::take_initializer(onnx::TensorProto* proto) {
  const std::string name = proto->name();
  const auto found = values_.find(name);
  if (found == values_.end()) return take(proto, name);
  const Tensor& tensor = found->second;
  const DType dtype = dtype_from_onnx(proto->data_type(), name);
  const Dims dims = dims_of(*proto, name, dtype);
  if (tensor.dtype() != dtype || tensor.dims() != dims) {
    throw ModelError(
        {.what = "The tensor given for an initializer has the wrong type or shape.",
         .node = quote(name),
         .expected = fmt::format("{}{}", name_of(dtype), to_string(dims)),
         .received = fmt::format("{}{}", name_of(tensor.dtype()), to_string(tensor.dims())),
         .remedy = "Give the weights of this model."});
  }
  keep(proto, tensor);
}

void TensorTable::keep(onnx::TensorProto* proto, Tensor tensor) {
  // ONNX's checker accepts a tensor without data if it has an empty shape.
  onnx::TensorProto emptied;
  emptied.set_name(std::move(*proto->mutable_name()));
  emptied.set_data_type(proto->data_type());
  emptied.add_dims(0);
  emptied.set_doc_string(std::to_string(tensors_.size()));
  proto->Swap(&emptied);
  tensors_.push_back(std::move(tensor));
}

Tensor TensorTable::get(const onnx::TensorProto& proto, const std::string& name) {
  const std::string& number = proto.doc_string();
  const char* end = number.data() + number.size();
  size_t i = 0;
  const bool empty = proto.dims_size() == 1 && proto.dims(0) == 0;  // set by keep()
  const bool taken = empty && !number.empty() &&
                     std::from_chars(number.data(), end, i).ptr == end && i < tensors_.size() &&
                     static_cast<int32_t>(tensors_[i].dtype()) == proto.data_type();
  return taken ? tensors_[i] : decode(proto, name, external_);
}

}  // namespace steep
