// A dense, row-major array: the type of all data that enters and leaves Steep.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "steep/dtype.h"

namespace steep {

/// Concrete extents, outermost first. Empty for a scalar.
using Dims = std::vector<int64_t>;

/// Product of the extents; 1 for a scalar. Throws ShapeError when an extent is negative or the
/// product overflows int64: the one place where extents are multiplied.
int64_t element_count(const Dims& dims);

/// Throws ShapeError: `received` values cannot fill `dims`.
[[noreturn]] void throw_count_mismatch(const Dims& dims, size_t received);

/// "[2, 3]"
std::string to_string(const Dims& dims);

/// Handle to a contiguous row-major array. Copying the handle shares the bytes. The owner keeps the
/// bytes alive: an allocation of Steep, a buffer of a pool, or memory of other code (NumPy,
/// PyTorch, a mapped file). Thread-safety: as std::shared_ptr for the handle; none for the bytes.
class Tensor {
 public:
  Tensor() = default;

  /// Fresh, uninitialised memory, aligned to 64 bytes. Throws OutOfMemoryError.
  static Tensor empty(DType dtype, Dims dims);
  static Tensor zeros(DType dtype, Dims dims);

  /// Borrows `data`; `owner` (may be null for static storage) is held for as long as the handle
  /// lives.
  static Tensor wrap(DType dtype, Dims dims, void* data, std::shared_ptr<void> owner);

  /// Copies `values`. Throws ShapeError when the count does not match the extents.
  template <typename T>
  static Tensor from(const std::vector<T>& values, const Dims& dims);
  template <typename T>
  static Tensor from(std::initializer_list<T> values, const Dims& dims) {
    return from(std::vector<T>(values), dims);
  }
  template <typename T>
  static Tensor scalar(T value) {
    Tensor t = empty(dtype_of<T>(), {});
    *t.data<T>() = value;
    return t;
  }

  bool defined() const { return dtype_ != DType::undefined; }
  DType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  int64_t size() const { return size_; }
  size_t nbytes() const { return static_cast<size_t>(size_) * size_of(dtype_); }

  const void* data() const { return data_; }
  void* data() { return data_; }

  /// Typed access. Throws InternalError when T is not the dtype (bool may be read as uint8_t).
  template <typename T>
  const T* data() const {
    require(dtype_of<T>());
    return static_cast<const T*>(data_);
  }
  template <typename T>
  T* data() {
    require(dtype_of<T>());
    return static_cast<T*>(data_);
  }

  Tensor clone() const;
  /// The same bytes under other extents. Throws ShapeError when the counts differ.
  Tensor reshaped(Dims dims) const;
  /// Elements as int64 (any integer or bool dtype). Throws InternalError for float dtypes.
  std::vector<int64_t> to_ints() const;
  const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  void require(DType wanted) const;

  DType dtype_ = DType::undefined;
  Dims dims_;
  int64_t size_ = 0;
  void* data_ = nullptr;
  std::shared_ptr<void> owner_;
};

template <typename T>
Tensor Tensor::from(const std::vector<T>& values, const Dims& dims) {
  Tensor t = wrap(dtype_of<T>(), dims, const_cast<T*>(values.data()), nullptr);
  if (t.size() != static_cast<int64_t>(values.size()))
    throw_count_mismatch(t.dims(), values.size());
  return t.clone();
}

}  // namespace steep
