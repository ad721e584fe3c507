// Hardmax: 1 at the first maximal element of each line along an axis, 0 elsewhere. NaN counts as
// the maximum, as in PyTorch's argmax.
#include <cmath>

#include "providers/cpu/axis.h"
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"

namespace steep::cpu {
namespace {

template <typename T>
std::unique_ptr<Kernel> hardmax(AxisSplit split) {
  return kernel_from([split](const KernelArgs& args) {
    const T* x = args.input<T>(0);
    T* y = args.output<T>(0);
    for_lines(split, false, [&](int64_t at, int64_t step, int64_t count) {
      int64_t best = at;
      for (int64_t i = 0; i < count; ++i, at += step) {
        if (x[at] > x[best] || (std::isnan(x[at]) && !std::isnan(x[best]))) best = at;
        y[at] = 0;
      }
      y[best] = 1;
    });
  });
}

std::unique_ptr<Kernel> make_hardmax(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const auto axis = axis_from_front(node.attrs.integer("axis"), x.rank());
  if (!axis) return decline(why_not, "the axis is out of range");
  const AxisSplit split = split_around(x.dims, *axis, *axis + 1);
  if (x.dtype == DType::f32) return hardmax<float>(split);
  if (x.dtype == DType::f64) return hardmax<double>(split);
  return decline(why_not, "dtype is {}", name_of(x.dtype));
}

}  // namespace

void register_hardmax(std::vector<Candidate>& list) {
  list.push_back({"Hardmax", "reference", make_hardmax});
}

}  // namespace steep::cpu
