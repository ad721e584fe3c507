// Shape, Size: known at plan time.
#include <algorithm>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> make_shape(const NodeSpec& node, std::string*) {
  const Dims& dims = node.in(0).dims;
  const int64_t rank = node.in(0).rank();
  auto clamp = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t start = clamp(node.attrs.integer("start"));
  const int64_t end = std::max(start, clamp(node.attrs.integer("end", rank)));
  return kernel_from(
      [part = Dims(dims.begin() + start, dims.begin() + end)](const KernelArgs& args) {
        std::copy(part.begin(), part.end(), args.output<int64_t>(0));
      });
}

std::unique_ptr<Kernel> make_size(const NodeSpec& node, std::string*) {
  return kernel_from(
      [n = node.in(0).size()](const KernelArgs& args) { *args.output<int64_t>(0) = n; });
}

}  // namespace

void register_shape(std::vector<Candidate>& list) {
  list.push_back({"Shape", "reference", make_shape});
  list.push_back({"Size", "reference", make_size});
}

}  // namespace steep::cpu
