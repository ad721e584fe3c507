#include "flow/slices.h"

#include <fmt/format.h>

#include <cstring>

#include "steep/error.h"

namespace steep {
namespace {

int64_t product(const Dims& dims, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t i = begin; i < end; ++i) n *= dims[i];
  return n;
}

}  // namespace

Tensor slice(const Tensor& x, int64_t axis, int64_t begin, int64_t count) {
  const auto at = static_cast<size_t>(axis);
  Dims dims = x.dims();
  const int64_t extent = dims[at];
  const int64_t outer = product(dims, 0, at);
  const size_t row = static_cast<size_t>(product(dims, at + 1, dims.size())) * size_of(x.dtype());
  dims[at] = count;
  const auto* from = static_cast<const std::byte*>(x.data()) + static_cast<size_t>(begin) * row;
  if (outer == 1) {
    // The caller must only read it, like the tensor itself.
    return Tensor::wrap(x.dtype(), dims, const_cast<std::byte*>(from), std::make_shared<Tensor>(x));
  }
  Tensor y = Tensor::empty(x.dtype(), dims);
  auto* to = static_cast<std::byte*>(y.data());
  const size_t bytes = row * static_cast<size_t>(count);
  for (int64_t o = 0; o < outer && bytes > 0; ++o) {
    std::memcpy(to, from, bytes);
    to += bytes;
    from += row * static_cast<size_t>(extent);
  }
  return y;
}

Tensor concat(std::span<const Tensor> parts, int64_t axis) {
  if (parts.empty()) {
    throw DataError({.what = "An empty sequence cannot be concatenated.",
                     .expected = "at least one tensor",
                     .received = "an empty sequence"});
  }
  const auto at = static_cast<size_t>(axis);
  Dims dims = parts[0].dims();
  int64_t total = 0;
  for (const Tensor& t : parts) {
    Dims other = t.dims();
    const bool ranks = other.size() == dims.size() && at < dims.size();
    if (ranks) {
      if (__builtin_add_overflow(total, other[at], &total)) total = -1;
      other[at] = dims[at];
    }
    if (!ranks || other != dims || total < 0) {
      throw ShapeError({.what = "Tensors cannot be concatenated: their shapes do not match.",
                        .expected = fmt::format("{} but for axis {}", to_string(dims), axis),
                        .received = to_string(t.dims())});
    }
    if (t.dtype() != parts[0].dtype()) {
      throw DataError({.what = "Tensors cannot be concatenated: their types differ.",
                       .expected = std::string(name_of(parts[0].dtype())),
                       .received = std::string(name_of(t.dtype()))});
    }
  }
  if (parts.size() == 1) return parts[0];
  dims[at] = total;
  Tensor y = Tensor::empty(parts[0].dtype(), dims);
  const int64_t outer = product(dims, 0, at);
  const size_t row = static_cast<size_t>(product(dims, at + 1, dims.size())) * size_of(y.dtype());
  if (y.size() == 0) return y;
  auto* to = static_cast<std::byte*>(y.data());
  for (int64_t o = 0; o < outer; ++o) {
    for (const Tensor& t : parts) {
      const size_t bytes = static_cast<size_t>(t.dims()[at]) * row;
      if (bytes == 0) continue;
      std::memcpy(to, static_cast<const std::byte*>(t.data()) + static_cast<size_t>(o) * bytes,
                  bytes);
      to += bytes;
    }
  }
  return y;
}

Tensor with_axis(const Tensor& x, int64_t axis) {
  Dims dims = x.dims();
  dims.insert(dims.begin() + axis, 1);
  return x.reshaped(std::move(dims));
}

Tensor without_axis(const Tensor& x, int64_t axis) {
  Dims dims = x.dims();
  dims.erase(dims.begin() + axis);
  return x.reshaped(std::move(dims));
}

}  // namespace steep
