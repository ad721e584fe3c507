// CumSum and CumProd, and linear recurrences: one pass over each line of an axis, or over its rows.
#include <algorithm>

#include "providers/cpu/axis.h"
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

/// CumSum (std::plus) and CumProd (std::multiplies). Floats are accumulated in double; integers
/// wrap.
template <typename T, typename Combine>
struct Cumulative {
  NodeId id;
  Dims dims;
  bool exclusive, reverse, wide_axis;

  void operator()(const KernelArgs& args) const {
    using Total = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;
    constexpr auto kNothing = std::is_same_v<Combine, std::plus<>> ? Total{0} : Total{1};
    const auto rank = static_cast<int64_t>(dims.size());
    const int64_t number = wide_axis ? *args.input<int64_t>(1) : *args.input<int32_t>(1);
    const auto axis = axis_from_front(number, rank);
    if (!axis) {
      id.data_error("The axis is out of range.", fmt::format("an axis in [{}, {})", -rank, rank),
                    std::to_string(number));
    }
    for_lines(split_around(dims, *axis, *axis + 1), reverse,
              [&](int64_t at, int64_t step, int64_t count) {
                Total total = kNothing;
                for (int64_t i = 0; i < count; ++i, at += step) {
                  const Total next = Combine()(total, static_cast<Total>(args.input<T>(0)[at]));
                  args.output<T>(0)[at] = static_cast<T>(exclusive ? total : next);
                  total = next;
                }
              });
  }
};

template <typename Combine>
std::unique_ptr<Kernel> make_cumulative(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  if (x.dtype == DType::f16 || x.dtype == DType::bf16 || x.dtype == DType::boolean) {
    return decline(why_not, "dtype is {}", name_of(x.dtype));
  }
  if (x.rank() == 0) return decline(why_not, "a scalar has no axis");
  return with_storage_type(x.dtype, [&]<typename T>(T*) -> std::unique_ptr<Kernel> {
    return kernel_from(
        Cumulative<T, Combine>{NodeId(node), x.dims, node.attrs.integer("exclusive") != 0,
                               node.attrs.integer("reverse") != 0, node.in(1).dtype == DType::i64},
        0, {{0, 0}});
  });
}

/// Row by row along the axis, so that the elements of a row are computed at once. The first row is
/// a's, whatever its factor is.
template <typename T>
void recur_rows(const AxisSplit& split, bool reverse, const T* a, const T* b, T* y) {
  constexpr int64_t kBlock = 256;  // elements of a row; the row before it stays in the cache
  if (split.extent == 0) return;
  const int64_t blocks = (split.inner + kBlock - 1) / kBlock;
  const int64_t width = std::min(split.inner, kBlock);
  parallel_for(split.outer * blocks, grain_of(32768, split.extent * width),
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t from = task % blocks * kBlock;
                   const int64_t count = std::min(kBlock, split.inner - from);
                   const int64_t first = task / blocks * split.extent * split.inner + from;
                   const int64_t step = reverse ? -split.inner : split.inner;
                   int64_t at = reverse ? first + (split.extent - 1) * split.inner : first;
                   T before[kBlock];
                   std::copy_n(a + at, count, before);
                   std::copy_n(before, count, y + at);
                   for (int64_t row = 1; row < split.extent; ++row) {
                     at += step;
                     for (int64_t i = 0; i < count; ++i)
                       y[at + i] = before[i] = a[at + i] + b[at + i] * before[i];
                   }
                 }
               });
}

template <typename T>
std::unique_ptr<Kernel> recurrence(const NodeSpec& node, int64_t axis, bool reverse) {
  auto run = [split = split_around(node.in(0).dims, axis, axis + 1),
              reverse](const KernelArgs& args) {
    const T *a = args.input<T>(0), *b = args.input<T>(1);
    T* y = args.output<T>(0);
    if (split.inner > 1) return recur_rows(split, reverse, a, b, y);
    for_lines(split, reverse, [&](int64_t at, int64_t step, int64_t count) {
      T before = y[at] = a[at];
      for (int64_t i = 1; i < count; ++i) {
        at += step;
        y[at] = before = a[at] + b[at] * before;
      }
    });
  };
  return kernel_from(run, 0, {{0, 0}, {1, 0}});
}

std::unique_ptr<Kernel> make_recurrence(const NodeSpec& node, std::string* why_not) {
  const Operand& a = node.in(0);
  const int64_t axis = node.attrs.integer("axis");
  const bool reverse = node.attrs.integer("reverse") != 0;
  if (a.dims != node.in(1).dims) return decline(why_not, "the shapes differ");
  if (axis < 0 || axis >= a.rank()) return decline(why_not, "the axis is out of range");
  if (a.dtype == DType::f32) return recurrence<float>(node, axis, reverse);
  if (a.dtype == DType::f64) return recurrence<double>(node, axis, reverse);
  return decline(why_not, "dtype is {}", name_of(a.dtype));
}

}  // namespace

void register_cumulative(std::vector<Candidate>& list) {
  list.push_back({"CumSum", "reference", make_cumulative<std::plus<>>});
  list.push_back({"CumProd", "reference", make_cumulative<std::multiplies<>>});
  list.push_back({"steep.Recurrence", "reference", make_recurrence});
}

}  // namespace steep::cpu
