// ScatterElements, ScatterND with reduction none, add, mul, min, max. One thread writes in the
// order of the updates, so results for duplicate indices are reproducible. All indices are checked
// before anything is written.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/strided_copy.h"

namespace steep::cpu {
namespace {

enum class Reduction { none, add, mul, min, max };

std::optional<Reduction> parse_reduction(const NodeSpec& node, std::string* why_not) {
  const std::string name = node.attrs.string("reduction");
  if (name == "none") return Reduction::none;
  if (name == "add") return Reduction::add;
  if (name == "mul") return Reduction::mul;
  if (name == "min") return Reduction::min;
  if (name == "max") return Reduction::max;
  decline(why_not, "reduction is '{}'", name);
  return std::nullopt;
}

template <typename T>
T combine(Reduction reduction, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return a;
  }
  switch (reduction) {
    case Reduction::add: return static_cast<T>(a + b);
    case Reduction::mul: return static_cast<T>(a * b);
    case Reduction::min: return b < a || b != b ? b : a;
    case Reduction::max: return b > a || b != b ? b : a;
    case Reduction::none: break;
  }
  return b;
}

/// dst[i] = combine(dst[i], src[i]) for n adjacent elements.
using CombineRun = void (*)(Reduction, const void* src, void* dst, int64_t n);

template <typename T>
void combine_run(Reduction reduction, const void* src, void* dst, int64_t n) {
  const auto* b = static_cast<const T*>(src);
  auto* a = static_cast<T*>(dst);
  // Integers are combined as unsigned where they may overflow.
  if constexpr (std::is_integral_v<T>) {
    using U = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;
    if (reduction == Reduction::add || reduction == Reduction::mul) {
      for (int64_t i = 0; i < n; ++i) {
        a[i] = static_cast<T>(combine(reduction, static_cast<U>(a[i]), static_cast<U>(b[i])));
      }
      return;
    }
  }
  for (int64_t i = 0; i < n; ++i) a[i] = combine(reduction, a[i], b[i]);
}

template <float (*widen)(uint16_t), uint16_t (*narrow)(float)>
void combine_run_16(Reduction reduction, const void* src, void* dst, int64_t n) {
  const auto* b = static_cast<const uint16_t*>(src);
  auto* a = static_cast<uint16_t*>(dst);
  for (int64_t i = 0; i < n; ++i) a[i] = narrow(combine(reduction, widen(a[i]), widen(b[i])));
}

CombineRun find_combine(DType dtype) {
  if (dtype == DType::bf16) return combine_run_16<bf16_to_float, float_to_bf16>;
  if (dtype == DType::f16) return combine_run_16<f16_to_float, float_to_f16>;
  return with_storage_type(dtype, []<typename T>(T*) -> CombineRun { return combine_run<T>; });
}

void combine_or_copy(CombineRun run, Reduction reduction, const char* src, char* dst, int64_t n,
                     int64_t element) {
  if (reduction == Reduction::none) {
    std::memcpy(dst, src, static_cast<size_t>(n * element));
  } else {
    run(reduction, src, dst, n);
  }
}

std::unique_ptr<Kernel> make_scatter_elements(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& index = node.in(1);
  const auto reduction = parse_reduction(node, why_not);
  if (!reduction) return nullptr;
  const auto axis = axis_from_front(node.attrs.integer("axis"), x.rank());
  if (!axis || index.rank() != x.rank())
    return decline(why_not, "axis or indices do not fit the rank");
  if (index.dtype != DType::i64 && index.dtype != DType::i32) {
    return decline(why_not, "indices are {}", name_of(index.dtype));
  }
  if (node.in(2).dims != index.dims) return decline(why_not, "updates and indices differ in shape");
  const auto a = static_cast<size_t>(*axis);
  for (size_t i = 0; i < x.dims.size(); ++i) {
    if (i != a && index.dims[i] > x.dims[i])
      return decline(why_not, "indices exceed the data along axis {}", i);
  }
  const CombineRun combine = find_combine(x.dtype);
  const auto element = static_cast<int64_t>(size_of(x.dtype));
  const int64_t limit = x.dims[a];
  const bool wide = index.dtype == DType::i64;
  auto run = [=, id = NodeId(node), reduction = *reduction, dims = index.dims, n = index.size(),
              bytes = x.size() * element,
              strides = row_major_strides(x.dims)](const KernelArgs& args) {
    auto index_at = [&](int64_t i) -> int64_t {
      return wide ? args.input<int64_t>(1)[i] : args.input<int32_t>(1)[i];
    };
    for (int64_t i = 0; i < n; ++i) checked_index(id, index_at(i), limit);
    auto* dst = args.output<char>(0);
    if (args.in[0] != args.out[0]) copy_bytes(args.in[0], dst, bytes);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t k = index_at(i);
      int64_t offset = (k < 0 ? k + limit : k) * strides[a];
      int64_t rest = i;
      for (size_t d = dims.size(); d-- > 0;) {
        if (d != a) offset += rest % dims[d] * strides[d];
        rest /= dims[d];
      }
      combine_or_copy(combine, reduction, args.input<char>(2) + i * element, dst + offset * element,
                      1, element);
    }
  };
  return kernel_from(run, 0, {{0, 0}});
}

std::unique_ptr<Kernel> make_scatter_nd(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& index = node.in(1);
  const Operand& updates = node.in(2);
  const auto reduction = parse_reduction(node, why_not);
  if (!reduction) return nullptr;
  if (index.dtype != DType::i64 || index.rank() == 0)
    return decline(why_not, "indices are not int64[…, k]");
  const int64_t depth = index.dims.back();
  if (depth > x.rank()) return decline(why_not, "indices address more axes than there are");
  const int64_t rows = extent(index.dims, 0, index.rank() - 1);
  const int64_t run_length = extent(x.dims, depth, x.rank());
  if (updates.size() != rows * run_length)
    return decline(why_not, "updates do not fit the indices");
  const CombineRun combine = find_combine(x.dtype);
  const auto element = static_cast<int64_t>(size_of(x.dtype));
  const Dims extents(x.dims.begin(), x.dims.begin() + depth);
  auto run = [=, id = NodeId(node), reduction = *reduction, bytes = x.size() * element,
              strides = row_major_strides(x.dims)](const KernelArgs& args) {
    const auto* index_data = args.input<int64_t>(1);
    for (int64_t i = 0; i < rows * depth; ++i) {
      checked_index(id, index_data[i], extents[static_cast<size_t>(i % depth)]);
    }
    auto* dst = args.output<char>(0);
    if (args.in[0] != args.out[0]) copy_bytes(args.in[0], dst, bytes);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t offset = 0;
      for (int64_t k = 0; k < depth; ++k) {
        const auto a = static_cast<size_t>(k);
        const int64_t v = index_data[r * depth + k];
        offset += (v < 0 ? v + extents[a] : v) * strides[a];
      }
      combine_or_copy(combine, reduction, args.input<char>(2) + r * run_length * element,
                      dst + offset * element, run_length, element);
    }
  };
  return kernel_from(run, 0, {{0, 0}});
}

}  // namespace

void register_scatter(std::vector<Candidate>& list) {
  list.push_back({"ScatterElements", "reference", make_scatter_elements});
  list.push_back({"ScatterND", "reference", make_scatter_nd});
}

}  // namespace steep::cpu
