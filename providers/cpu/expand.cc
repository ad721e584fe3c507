// Expand, Tile: broadcasts the source with an axis of stride 0.
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/strided_copy.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> make_expand(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& y = node.out(0);
  if (x.rank() > y.rank()) return decline(why_not, "the output's rank is below the input's");
  const Dims strides = row_major_strides(x.dims);
  const size_t lead = y.dims.size() - x.dims.size();
  Dims src_strides(y.dims.size(), 0);
  for (size_t i = 0; i < x.dims.size(); ++i) {
    if (x.dims[i] == y.dims[lead + i]) {
      src_strides[lead + i] = strides[i];
    } else if (x.dims[i] != 1) {
      return decline(why_not, "{} does not broadcast to {}", to_string(x.dims), to_string(y.dims));
    }
  }
  StridedCopy copy(size_of(x.dtype), y.dims, src_strides, row_major_strides(y.dims));
  return kernel_from([copy](const KernelArgs& args) { copy.run(args.in[0], args.out[0]); });
}

std::unique_ptr<Kernel> make_tile(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& y = node.out(0);
  if (x.rank() != y.rank()) return decline(why_not, "the output's rank is not the input's");
  const Dims strides = row_major_strides(x.dims);
  // Each axis becomes two: the repeats and the source's axis.
  Dims dims;
  Dims src_strides;
  for (size_t i = 0; i < x.dims.size(); ++i) {
    const int64_t repeats = x.dims[i] == 0 ? 0 : y.dims[i] / x.dims[i];
    if (repeats * x.dims[i] != y.dims[i])
      return decline(why_not, "the output is not a multiple of the input");
    dims.insert(dims.end(), {repeats, x.dims[i]});
    src_strides.insert(src_strides.end(), {0, strides[i]});
  }
  StridedCopy copy(size_of(x.dtype), dims, src_strides, row_major_strides(dims));
  return kernel_from([copy](const KernelArgs& args) { copy.run(args.in[0], args.out[0]); });
}

}  // namespace

void register_expand(std::vector<Candidate>& list) {
  list.push_back({"Expand", "strided", make_expand});
  list.push_back({"Tile", "strided", make_tile});
}

}  // namespace steep::cpu
