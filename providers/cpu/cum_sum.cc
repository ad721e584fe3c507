#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

/// Running sums along one axis; floats are summed in double.
template <typename T>
struct CumSum {
  NodeId id;
  Dims dims;
  bool exclusive, reverse, wide_axis;

  void operator()(const KernelArgs& args) const {
    using Sum = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;
    const auto rank = static_cast<int64_t>(dims.size());
    const int64_t given = wide_axis ? *args.input<int64_t>(1) : *args.input<int32_t>(1);
    const auto axis = axis_from_front(given, rank);
    if (!axis) {
      id.data_error("The axis is out of range.", fmt::format("an axis in [{}, {})", -rank, rank),
                    std::to_string(given));
    }
    const int64_t n = dims[static_cast<size_t>(*axis)];
    const int64_t inner = extent(dims, *axis + 1, rank);
    const int64_t lines = extent(dims, 0, *axis) * inner;
    if (n == 0) return;
    parallel_for(lines, std::max<int64_t>(1, 32768 / n), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t base = line / inner * n * inner + line % inner;
        const int64_t step = reverse ? -inner : inner;
        int64_t at = reverse ? base + (n - 1) * inner : base;
        Sum sum = 0;
        for (int64_t i = 0; i < n; ++i, at += step) {
          const auto x = static_cast<Sum>(args.input<T>(0)[at]);
          args.output<T>(0)[at] = static_cast<T>(exclusive ? sum : sum + x);
          sum += x;
        }
      }
    });
  }
};

std::unique_ptr<Kernel> make_cum_sum(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  if (x.dtype == DType::f16 || x.dtype == DType::bf16 || x.dtype == DType::boolean) {
    return decline(why_not, "dtype is {}", name_of(x.dtype));
  }
  if (x.rank() == 0) return decline(why_not, "a scalar has no axis");
  return with_storage_type(x.dtype, [&]<typename T>(T*) -> std::unique_ptr<Kernel> {
    return kernel_from(
        CumSum<T>{NodeId(node), x.dims, node.attrs.integer("exclusive", 0) != 0,
                  node.attrs.integer("reverse", 0) != 0, node.in(1).dtype == DType::i64},
        0, {{0, 0}});
  });
}

}  // namespace

void register_cum_sum(std::vector<Candidate>& list) {
  list.push_back({"CumSum", "reference", make_cum_sum});
}

}  // namespace steep::cpu
