// Reads a tensor from a file each time that a node needs it.
#include "data/file_places.h"
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> make_read_file(const NodeSpec& node, std::string* why_not) {
  if (!has_places()) return decline(why_not, "no file is open here");
  const DType dtype = node.out(0).dtype;
  if (bits_of(dtype) < 8) return decline(why_not, "the result is {}", name_of(dtype));
  const size_t bytes = static_cast<size_t>(node.out(0).size()) * size_of(dtype);
  return kernel_from(
      [bytes](const KernelArgs& args) { read_place(args.input<int64_t>(0), args.out[0], bytes); });
}

}  // namespace

void register_read_file(std::vector<Candidate>& list) {
  list.push_back({"steep.ReadFile", "pread", make_read_file});
}

}  // namespace steep::cpu
