#include <algorithm>
#include <cstring>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> make_trilu(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  if (x.rank() < 2) return decline(why_not, "the rank is below 2");
  const bool upper = node.attrs.integer("upper") != 0;
  const int64_t rows = x.dims[x.dims.size() - 2];
  const int64_t columns = x.dims.back();
  const int64_t all_rows = columns == 0 ? 0 : x.size() / columns;
  const auto element = static_cast<int64_t>(size_of(x.dtype));
  const bool has_k = node.in(1).present();
  auto run = [=](const KernelArgs& args) {
    // All k beyond the matrix have the same effect; clamping k prevents overflow of row + k.
    const int64_t k =
        has_k ? std::clamp<int64_t>(*args.input<int64_t>(1), -rows - 1, columns + 1) : 0;
    const bool in_place = args.in[0] == args.out[0];
    parallel_for(all_rows, grain_of(32768, columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        // upper keeps [split, columns), lower keeps [0, split)
        const int64_t split = std::clamp<int64_t>(r % rows + k + (upper ? 0 : 1), 0, columns);
        const int64_t first = upper ? split : 0;
        const int64_t last = upper ? columns : split;
        auto* dst = args.output<char>(0) + r * columns * element;
        const auto* src = args.input<char>(0) + r * columns * element;
        std::memset(dst, 0, static_cast<size_t>(first * element));
        if (!in_place)
          std::memcpy(dst + first * element, src + first * element,
                      static_cast<size_t>((last - first) * element));
        std::memset(dst + last * element, 0, static_cast<size_t>((columns - last) * element));
      }
    });
  };
  return kernel_from(run, 0, {{0, 0}});
}

}  // namespace

void register_trilu(std::vector<Candidate>& list) {
  list.push_back({"Trilu", "reference", make_trilu});
}

}  // namespace steep::cpu
