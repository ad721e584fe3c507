#include "ir/type.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/address_space.h"
#include "steep/error.h"

namespace steep {

bool Type::concrete() const {
  if (!shape || kind != Kind::tensor) return false;
  for (const Dim& d : *shape) {
    if (!d.known()) return false;
  }
  return true;
}

Dims Type::dims() const {
  if (!concrete()) {
    throw InternalError(
        {.what = "A symbolic shape was read as numbers.", .received = to_string(*this)});
  }
  Dims out;
  for (const Dim& d : *shape) out.push_back(d.value());
  return out;
}

size_t Type::nbytes() const {
  const auto count = static_cast<uint64_t>(element_count(dims()));
  if (count > kMostTensorBytes / std::max<size_t>(size_of(dtype), 1)) {
    throw ShapeError({.what = "A tensor would be larger than any memory.",
                      .expected = kNarrowAddresses ? "at most 2^27 bytes" : "at most 2^47 bytes",
                      .received = to_string(*this),
                      .remedy = "Check the shapes, sizes or repeats fed to the model."});
  }
  return static_cast<size_t>(count) * size_of(dtype);
}

bool provably_equal(const Shape& a, const Shape& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!provably_equal(a[i], b[i])) return false;
  }
  return true;
}

Shape to_shape(const Dims& dims) { return Shape(dims.begin(), dims.end()); }

std::string to_string(const std::optional<Shape>& shape) {
  if (!shape) return "[*]";
  std::string out = "[";
  for (size_t i = 0; i < shape->size(); ++i) {
    const Dim& d = (*shape)[i];
    if (i != 0) out += ", ";
    out += d.known() ? std::to_string(d.value()) : d.symbol().empty() ? "?" : d.symbol();
  }
  return out + "]";
}

std::string to_string(const Type& type) {
  std::string tensor = std::string(name_of(type.dtype)) + to_string(type.shape);
  switch (type.kind) {
    case Kind::tensor: return tensor;
    case Kind::sequence: return "seq(" + tensor + ")";
    case Kind::optional: return "optional(" + tensor + ")";
    case Kind::optional_sequence: return "optional(seq(" + tensor + "))";
  }
  return tensor;
}

}  // namespace steep
