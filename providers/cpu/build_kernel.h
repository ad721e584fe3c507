// Helpers for kernel files: kernels from lambdas, reasons to decline, axes, strides, errors.
#pragma once

#include <fmt/format.h>

#include <optional>

#include "providers/cpu/kernel.h"
#include "steep/error.h"

namespace steep::cpu {

/// A kernel whose execute() is a function object `f(const KernelArgs&)`, callable when const.
template <typename F>
class FunctionKernel final : public Kernel {
 public:
  explicit FunctionKernel(F f) : f_(std::move(f)) {}
  void execute(const KernelArgs& args) const override { f_(args); }

 private:
  F f_;
};

template <typename F>
std::unique_ptr<Kernel> kernel_from(F f, size_t scratch_bytes = 0,
                                    std::vector<std::pair<int, int>> may_share = {}) {
  auto kernel = std::make_unique<FunctionKernel<F>>(std::move(f));
  kernel->scratch_bytes = scratch_bytes;
  kernel->may_share = std::move(may_share);
  return kernel;
}

/// Rounds up to whole cache lines, where the next part of a kernel's scratch may start.
constexpr size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

/// `return decline(why_not, "…")`: stores the reason and returns a null kernel.
template <typename... Args>
std::nullptr_t decline(std::string* why_not, fmt::format_string<Args...> text, Args&&... args) {
  if (why_not != nullptr) *why_not = fmt::format(text, std::forward<Args>(args)...);
  return nullptr;
}

/// Axis counted from the front, or nothing when it is outside [-rank, rank).
inline std::optional<int64_t> axis_from_front(int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) return std::nullopt;
  return axis < 0 ? axis + rank : axis;
}

/// The values of a constant integer operand; nothing when the operand is absent or not constant.
inline std::optional<std::vector<int64_t>> constant_ints(const Operand& operand) {
  if (!operand.present() || operand.constant == nullptr) return std::nullopt;
  return operand.constant->to_ints();
}

/// For each axis, the distance in elements between neighbouring indices.
inline Dims row_major_strides(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

/// Product of dims[begin, end).
inline int64_t extent(const Dims& dims, int64_t begin, int64_t end) {
  int64_t n = 1;
  for (int64_t i = begin; i < end; ++i) n *= dims[static_cast<size_t>(i)];
  return n;
}

/// Identifies the node in errors of execute().
struct NodeId {
  std::string node;
  std::string op;

  explicit NodeId(const NodeSpec& spec) : node(spec.name), op(spec.op) {}

  [[noreturn]] void data_error(std::string what, std::string expected, std::string received,
                               std::string remedy = "") const {
    throw DataError({.what = std::move(what),
                     .node = node,
                     .op = op,
                     .expected = std::move(expected),
                     .received = std::move(received),
                     .remedy = std::move(remedy)});
  }
};

/// One index of a gather or scatter, counted from the front. Throws DataError when it is out of
/// range.
inline int64_t checked_index(const NodeId& id, int64_t index, int64_t extent) {
  if (index < -extent || index >= extent) [[unlikely]] {
    id.data_error("An index is out of range.", fmt::format("an index in [{}, {})", -extent, extent),
                  std::to_string(index));
  }
  return index < 0 ? index + extent : index;
}

/// Calls f with a null pointer to the C++ type that stores a dtype: uint8_t for bool and types
/// narrower than a byte, unsigned integers for 8- and 16-bit floats.
template <typename F>
decltype(auto) with_storage_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(static_cast<float*>(nullptr));
    case DType::f64: return f(static_cast<double*>(nullptr));
    case DType::i8: return f(static_cast<int8_t*>(nullptr));
    case DType::u8:
    case DType::boolean:
    case DType::f8e4m3fn:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2:
    case DType::f8e5m2fnuz:
    case DType::f8e8m0:
    case DType::f6e2m3:
    case DType::f6e3m2:
    case DType::f4e2m1:
    case DType::u4:
    case DType::i4:
    case DType::u2:
    case DType::i2: return f(static_cast<uint8_t*>(nullptr));
    case DType::i16: return f(static_cast<int16_t*>(nullptr));
    case DType::u16:
    case DType::f16:
    case DType::bf16: return f(static_cast<uint16_t*>(nullptr));
    case DType::i32: return f(static_cast<int32_t*>(nullptr));
    case DType::u32: return f(static_cast<uint32_t*>(nullptr));
    case DType::i64: return f(static_cast<int64_t*>(nullptr));
    case DType::u64: return f(static_cast<uint64_t*>(nullptr));
    case DType::undefined: break;
  }
  throw InternalError({.what = "A kernel was built for an undefined dtype."});
}

}  // namespace steep::cpu
