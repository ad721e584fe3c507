// Cast, CastLike.
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> make_cast(const NodeSpec& node, std::string*) {
  const Operand& x = node.in(0);
  const Operand& y = node.out(0);
  const Convert convert = find_convert(x.dtype, y.dtype);
  const auto from = static_cast<int64_t>(size_of(x.dtype));
  const auto to = static_cast<int64_t>(size_of(y.dtype));
  auto run = [convert, from, to, n = x.size()](const KernelArgs& args) {
    parallel_for(n, 32768, [&](int64_t begin, int64_t end) {
      convert(args.input<char>(0) + begin * from, args.output<char>(0) + begin * to, end - begin);
    });
  };
  std::vector<std::pair<int, int>> share;
  if (from == to) share = {{0, 0}};
  return kernel_from(run, 0, share);
}

}  // namespace

void register_cast(std::vector<Candidate>& list) {
  list.push_back({"Cast", "convert", make_cast});
  list.push_back({"CastLike", "convert", make_cast});
}

}  // namespace steep::cpu
