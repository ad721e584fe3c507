// Concat, Split, steep.SetPart: one strided copy per part.
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/strided_copy.h"

namespace steep::cpu {
namespace {

/// The copy of one part, with the offset of the part in the whole (bytes).
struct Part {
  size_t operand;
  int64_t offset;
  StridedCopy copy;
};

std::unique_ptr<Kernel> make_concat(const NodeSpec& node, std::string* why_not) {
  const Operand& y = node.out(0);
  const auto axis = axis_from_front(node.attrs.integer("axis"), y.rank());
  if (!axis) return decline(why_not, "the axis is out of range");
  const auto a = static_cast<size_t>(*axis);
  const Dims strides = row_major_strides(y.dims);
  const auto element = static_cast<int64_t>(size_of(y.dtype));
  std::vector<Part> parts;
  int64_t at = 0;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const Operand& x = node.inputs[i];
    if (!x.present()) continue;
    if (x.rank() != y.rank() || x.dtype != y.dtype)
      return decline(why_not, "the inputs differ in rank or dtype");
    parts.push_back({i, at * strides[a] * element,
                     StridedCopy(size_of(x.dtype), x.dims, row_major_strides(x.dims), strides)});
    at += x.dims[a];
  }
  if (at != y.dims[a]) return decline(why_not, "the inputs do not add up to the output");
  return kernel_from([parts](const KernelArgs& args) {
    for (const Part& p : parts) p.copy.run(args.in[p.operand], args.output<char>(0) + p.offset);
  });
}

std::unique_ptr<Kernel> make_split(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const auto axis = axis_from_front(node.attrs.integer("axis"), x.rank());
  if (!axis) return decline(why_not, "the axis is out of range");
  const auto a = static_cast<size_t>(*axis);
  const Dims strides = row_major_strides(x.dims);
  const auto element = static_cast<int64_t>(size_of(x.dtype));
  // An unused output has no extents here, so take the sizes from the `split` input if there is one.
  const auto sizes = constant_ints(node.in(1));
  const auto n = static_cast<int64_t>(node.outputs.size());
  if (sizes && static_cast<int64_t>(sizes->size()) != n)
    return decline(why_not, "split does not fit the outputs");
  const int64_t each = n == 0 ? 0 : (x.dims[a] + n - 1) / n;
  std::vector<Part> parts;
  int64_t at = 0;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const Operand& y = node.outputs[i];
    if (y.present()) {
      if (y.rank() != x.rank())
        return decline(why_not, "the outputs differ in rank from the input");
      if (at + y.dims[a] > x.dims[a]) return decline(why_not, "the outputs exceed the input");
      parts.push_back({i, at * strides[a] * element,
                       StridedCopy(size_of(x.dtype), y.dims, strides, row_major_strides(y.dims))});
      at += y.dims[a];
    } else {
      at += sizes ? (*sizes)[i] : each;
    }
  }
  return kernel_from([parts](const KernelArgs& args) {
    for (const Part& p : parts) p.copy.run(args.input<char>(0) + p.offset, args.out[p.operand]);
  });
}

std::unique_ptr<Kernel> make_set_part(const NodeSpec& node, std::string* why_not) {
  const Operand &whole = node.in(0), &part = node.in(1);
  const auto axis = axis_from_front(node.attrs.integer("axis"), whole.rank());
  if (!axis) return decline(why_not, "the axis is out of range");
  const auto a = static_cast<size_t>(*axis);
  const int64_t start = node.attrs.integer("start");
  Dims expected = whole.dims;
  if (part.rank() == whole.rank()) expected[a] = part.dims[a];
  if (part.dims != expected || part.dtype != whole.dtype || start < 0 ||
      start > whole.dims[a] - part.dims[a])
    return decline(why_not, "the part does not fit the whole");
  const Dims strides = row_major_strides(whole.dims);
  const auto element = static_cast<int64_t>(size_of(whole.dtype));
  const StridedCopy copy(size_of(part.dtype), part.dims, row_major_strides(part.dims), strides);
  return kernel_from(
      [copy, bytes = whole.size() * element,
       offset = start * strides[a] * element](const KernelArgs& args) {
        if (args.out[0] != args.in[0]) copy_bytes(args.in[0], args.out[0], bytes);
        copy.run(args.in[1], args.output<char>(0) + offset);
      },
      0, {{0, 0}});
}

}  // namespace

void register_concat(std::vector<Candidate>& list) {
  list.push_back({"Concat", "strided", make_concat});
  list.push_back({"Split", "strided", make_split});
  list.push_back({"steep.SetPart", "strided", make_set_part});
}

}  // namespace steep::cpu
