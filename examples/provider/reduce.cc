// ReduceSum and steep.SumTo(x, shape).
#include <algorithm>

#include "kernels.h"

namespace mirror {
namespace {

/// Sums `x` over the axes whose extent in `kept` is 1.
std::optional<Kernel> make(const Operand& x, const Dims& kept) {
  const Dims strides = broadcast_strides(x.dims, kept);
  int64_t count = 1;
  for (int64_t d : kept) count *= d;
  Kernel kernel;
  kernel.host_inputs = 1U << 1;  // the result's type already gives it
  kernel.bind = [dims = x.dims, strides, count](const Pointers& at) {
    return [&dims, &strides, count, at] {
      std::vector<double> sums(static_cast<size_t>(count), 0);
      for_each_offset(dims, strides,
                      [&](int64_t i, int64_t to) { sums[static_cast<size_t>(to)] += at.f(0)[i]; });
      for (int64_t i = 0; i < count; ++i)
        at.y(0)[i] = static_cast<float>(sums[static_cast<size_t>(i)]);
    };
  };
  return kernel;
}

}  // namespace

std::optional<Kernel> make_sum_to(const Node& node, std::string& why) {
  if (!all_floats(node, why, 1U << 1)) return std::nullopt;
  const Operand x = node.in(0);
  Dims kept = node.out(0).dims;
  kept.insert(kept.begin(), x.dims.size() - kept.size(), 1);
  return make(x, kept);
}

std::optional<Kernel> make_reduce_sum(const Node& node, std::string& why) {
  if (!all_floats(node, why, 1U << 1)) return std::nullopt;
  const Operand x = node.in(0), axes = node.in(1);
  if (axes.present() && axes.constant == nullptr) return decline(why, "axes are not constant");
  Dims kept = x.dims;
  const int64_t count = axes.present() ? axes.size() : 0;
  if (count == 0 && node.integer("noop_with_empty_axes") != 0)
    return decline(why, "there is nothing to sum");
  if (count == 0) std::fill(kept.begin(), kept.end(), 1);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t axis = static_cast<const int64_t*>(axes.constant)[i];
    kept[static_cast<size_t>(axis < 0 ? axis + x.rank() : axis)] = 1;
  }
  return make(x, kept);
}

}  // namespace mirror
