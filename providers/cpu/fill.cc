// Ops that create a tensor from few or no elements: ConstantOfShape, Range, EyeLike, OneHot.
#include <algorithm>
#include <cstring>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"
#include "providers/cpu/strided_copy.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> make_constant_of_shape(const NodeSpec& node, std::string* why_not) {
  const Operand& y = node.out(0);
  const Attr* attr = node.attrs.find("value");
  const Tensor value =
      attr != nullptr ? std::get<Tensor>(*attr).clone() : Tensor::zeros(DType::f32, {1});
  if (value.dtype() != y.dtype || value.size() != 1)
    return decline(why_not, "value is not one {}", name_of(y.dtype));
  StridedCopy fill(size_of(y.dtype), {y.size()}, {0}, {1});
  return kernel_from(
      [fill, value](const KernelArgs& args) { fill.run(value.data(), args.out[0]); });
}

std::unique_ptr<Kernel> make_range(const NodeSpec& node, std::string* why_not) {
  const Operand& y = node.out(0);
  if (y.dtype == DType::f16 || y.dtype == DType::bf16)
    return decline(why_not, "dtype is {}", name_of(y.dtype));
  return with_storage_type(y.dtype, [&]<typename T>(T*) -> std::unique_ptr<Kernel> {
    return kernel_from([n = y.size(), id = NodeId(node)](const KernelArgs& args) {
      const T start = *args.input<T>(0);
      const T delta = *args.input<T>(2);
      if (delta == T{0})
        id.data_error("The step of a range is zero.", "a delta that is not 0", "0");
      auto* dst = args.output<T>(0);
      // Unsigned arithmetic, because integers from a hostile file may overflow.
      using Step = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
      for (int64_t i = 0; i < n; ++i) {
        dst[i] = static_cast<T>(static_cast<Step>(start) +
                                static_cast<Step>(i) * static_cast<Step>(delta));
      }
    });
  });
}

std::unique_ptr<Kernel> make_eye_like(const NodeSpec& node, std::string* why_not) {
  const Operand& y = node.out(0);
  if (y.rank() != 2) return decline(why_not, "the rank is not 2");
  const int64_t k = node.attrs.integer("k");
  const int64_t rows = y.dims[0];
  const int64_t columns = y.dims[1];
  // The diagonal starts at (begin, begin + k). It is empty when k is outside the matrix.
  const int64_t begin = k >= 0 ? 0 : (k < -rows ? rows : -k);
  const int64_t count =
      k >= columns ? 0 : std::min(rows - begin, columns - std::max<int64_t>(k, 0));
  const size_t element = size_of(y.dtype);
  Tensor one = Tensor::empty(y.dtype, {});
  const float unit = 1;
  find_convert(DType::f32, y.dtype)(&unit, one.data(), 1);
  return kernel_from([=](const KernelArgs& args) {
    auto* dst = args.output<char>(0);
    std::memset(dst, 0, static_cast<size_t>(rows * columns) * element);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = begin + i;
      std::memcpy(dst + (row * columns + row + k) * static_cast<int64_t>(element), one.data(),
                  element);
    }
  });
}

/// y = off, except on where the index along the new axis equals `indices`. Indices out of range
/// give only off, as ONNX requires.
std::unique_ptr<Kernel> make_one_hot(const NodeSpec& node, std::string* why_not) {
  const Operand& indices = node.in(0);
  const Operand& y = node.out(0);
  const auto axis = axis_from_front(node.attrs.integer("axis"), y.rank());
  if (!axis || y.rank() != indices.rank() + 1) return decline(why_not, "axis or rank does not fit");
  if (indices.dtype == DType::u64) return decline(why_not, "indices are uint64");
  const int64_t depth = y.dims[static_cast<size_t>(*axis)];
  const int64_t inner = extent(y.dims, *axis + 1, y.rank());
  const size_t element = size_of(y.dtype);
  StridedCopy fill(element, {y.size()}, {0}, {1});
  const Convert to_int = find_convert(indices.dtype, DType::i64);
  const auto index_bytes = static_cast<int64_t>(size_of(indices.dtype));
  return kernel_from([=, n = indices.size()](const KernelArgs& args) {
    const auto* off = args.input<char>(2);
    const char* on = off + element;
    auto* dst = args.output<char>(0);
    fill.run(off, dst);
    for (int64_t i = 0; i < n; ++i) {
      int64_t index = 0;
      to_int(args.input<char>(0) + i * index_bytes, &index, 1);
      if (index < -depth || index >= depth) continue;
      if (index < 0) index += depth;
      const int64_t at = (i / inner * depth + index) * inner + i % inner;
      std::memcpy(dst + at * static_cast<int64_t>(element), on, element);
    }
  });
}

}  // namespace

void register_fill(std::vector<Candidate>& list) {
  list.push_back({"ConstantOfShape", "reference", make_constant_of_shape});
  list.push_back({"Range", "reference", make_range});
  list.push_back({"EyeLike", "reference", make_eye_like});
  list.push_back({"OneHot", "reference", make_one_hot});
}

}  // namespace steep::cpu
