#include <numeric>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/strided_copy.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> make_transpose(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& y = node.out(0);
  Ints reversed(x.dims.size());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const Ints perm = node.attrs.ints("perm", reversed);
  if (perm.size() != x.dims.size()) return decline(why_not, "perm does not fit the rank");
  const Dims strides = row_major_strides(x.dims);
  Dims src_strides;
  for (int64_t p : perm) {
    const auto axis = axis_from_front(p, x.rank());
    if (!axis) return decline(why_not, "perm names axis {} of a tensor of rank {}", p, x.rank());
    src_strides.push_back(strides[static_cast<size_t>(*axis)]);
  }
  StridedCopy copy(size_of(x.dtype), y.dims, src_strides, row_major_strides(y.dims));
  return kernel_from([copy](const KernelArgs& args) { copy.run(args.in[0], args.out[0]); });
}

}  // namespace

void register_transpose(std::vector<Candidate>& list) {
  list.push_back({"Transpose", "strided", make_transpose});
}

}  // namespace steep::cpu
