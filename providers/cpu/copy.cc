// Ops whose output has the bytes of their input in the same order. The planner makes most of them
// aliases; these copies serve where it cannot (an output that the caller keeps).
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/strided_copy.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> make_copy(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& y = node.out(0);
  if (x.dtype != y.dtype || x.size() != y.size()) {
    return decline(why_not, "input and output differ in size or dtype");
  }
  const auto bytes = static_cast<int64_t>(size_of(x.dtype)) * x.size();
  auto copy = [bytes](const KernelArgs& args) {
    if (args.in[0] != args.out[0]) copy_bytes(args.in[0], args.out[0], bytes);
  };
  return kernel_from(copy, 0, {{0, 0}});
}

/// Does not read the state, whose old contents may be gone already.
std::unique_ptr<Kernel> make_assign(const NodeSpec& node, std::string* why_not) {
  const Operand& value = node.in(1);
  const Operand& state = node.out(0);
  if (value.dtype != state.dtype || value.dims != state.dims) {
    return decline(why_not, "state and value differ in shape or dtype");
  }
  const auto bytes = static_cast<int64_t>(size_of(value.dtype)) * value.size();
  auto copy = [bytes](const KernelArgs& args) {
    if (args.in[1] != args.out[0]) copy_bytes(args.in[1], args.out[0], bytes);
  };
  return kernel_from(copy, 0, {{0, 0}});
}

}  // namespace

void register_copy(std::vector<Candidate>& list) {
  for (const char* op : {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}) {
    list.push_back({op, "copy", make_copy});
  }
  list.push_back({"steep.Assign", "copy", make_assign});
}

}  // namespace steep::cpu
