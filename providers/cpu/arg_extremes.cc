// ArgMax, ArgMin. NaN counts as the extreme in both, as in NumPy and PyTorch.
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

template <typename T>
bool is_nan(T x) {
  return x != x;
}

/// Whether `a` is a strictly better extreme than `b`. NaN is better than any number.
template <typename T>
bool before(T a, T b, bool largest) {
  if (is_nan(a) || is_nan(b)) return is_nan(a) && !is_nan(b);
  return largest ? a > b : a < b;
}

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

std::unique_ptr<Kernel> make_arg(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const auto axis = axis_from_front(node.attrs.integer("axis"), x.rank());
  if (!axis) return decline(why_not, "the axis is out of range");
  if (is_half(x.dtype)) return decline(why_not, "dtype is {}", name_of(x.dtype));
  const int64_t n = x.dims[static_cast<size_t>(*axis)];
  if (n == 0 && node.out(0).size() != 0)
    return decline(why_not, "nothing to choose from along an empty axis");
  const bool largest = node.op == "ArgMax";
  const bool last = node.attrs.integer("select_last_index") != 0;
  const int64_t inner = extent(x.dims, *axis + 1, x.rank());
  const int64_t lines = extent(x.dims, 0, *axis) * inner;
  return with_storage_type(x.dtype, [&]<typename T>(T*) -> std::unique_ptr<Kernel> {
    return kernel_from([=](const KernelArgs& args) {
      if (n == 0) return;
      parallel_for(lines, grain_of(32768, n), [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const T* p = args.input<T>(0) + line / inner * n * inner + line % inner;
          int64_t best = 0;
          for (int64_t i = 1; i < n; ++i) {
            const T candidate = p[i * inner];
            const T champion = p[best * inner];
            if (last ? !before(champion, candidate, largest) : before(candidate, champion, largest))
              best = i;
          }
          args.output<int64_t>(0)[line] = best;
        }
      });
    });
  });
}

}  // namespace

void register_arg_extremes(std::vector<Candidate>& list) {
  list.push_back({"ArgMax", "reference", make_arg});
  list.push_back({"ArgMin", "reference", make_arg});
}

}  // namespace steep::cpu
