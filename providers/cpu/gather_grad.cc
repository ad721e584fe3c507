// steep.GatherGrad: zeros, or another array, plus slices of dy. Each thread owns destinations, so
// that several slices for one destination are added in the order of the indices. The sums of
// bfloat16 slices are float32, and rounded once.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <type_traits>

#include "providers/cpu/axis.h"
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/kernel.h"
#include "providers/cpu/parallel.h"
#include "steep/error.h"

namespace steep::cpu {
namespace {

template <typename T, typename Index>
class GatherGrad final : public Kernel {
 public:
  GatherGrad(const NodeSpec& node, AxisSplit split)
      : node_(node.name),
        split_(split),
        picks_(node.in(1).size()),
        has_base_(node.in(3).present()) {
    if (has_base_) may_share = {{3, 0}};
    if constexpr (kRounds) scratch_bytes = static_cast<size_t>(picks_) * sizeof(int64_t);
  }

  void execute(const KernelArgs& args) const override {
    const T* dy = args.input<T>(0);
    const Index* indices = args.input<Index>(1);
    const T* base = has_base_ ? args.input<T>(3) : nullptr;
    T* dx = args.output<T>(0);
    check(indices);
    auto* order = static_cast<int64_t*>(args.scratch);
    if constexpr (kRounds) sort_by_row(indices, order);

    const int64_t rows = split_.outer * split_.extent;
    const int64_t inner = split_.inner;
    // With few destinations, divide their columns between threads instead.
    if (rows < kFewRows) {
      const int64_t grain = std::max<int64_t>(64, grain_of(32768, rows + picks_));
      parallel_for(inner, grain, [&](int64_t begin, int64_t end) {
        start(base, dx, 0, rows, begin, end);
        add(dy, indices, order, dx, {0, rows, begin, end});
      });
    } else {
      const int64_t grain = grain_of(32768, inner);
      parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
        start(base, dx, begin, end, 0, inner);
        add(dy, indices, order, dx, {begin, end, 0, inner});
      });
    }
  }

 private:
  static constexpr int64_t kFewRows = 64;
  static constexpr bool kRounds = std::is_same_v<T, Bf16>;

  /// Destination rows [begin, end), columns [first, last).
  struct Region {
    int64_t begin, end, first, last;
  };

  int64_t row_of(Index index) const { return index < 0 ? index + split_.extent : index; }

  /// The picks by their row, those of one row in their order.
  void sort_by_row(const Index* indices, int64_t* order) const {
    std::iota(order, order + picks_, int64_t{0});
    std::sort(order, order + picks_, [&](int64_t a, int64_t b) {
      const int64_t row_a = row_of(indices[a]), row_b = row_of(indices[b]);
      return row_a != row_b ? row_a < row_b : a < b;
    });
  }

  void check(const Index* indices) const {
    for (int64_t i = 0; i < picks_; ++i) {
      if (indices[i] >= -split_.extent && indices[i] < split_.extent) continue;
      throw DataError(
          {.what = "An index lies outside the axis.",
           .node = node_,
           .op = "steep.GatherGrad",
           .expected = fmt::format("indices from {} to {}", -split_.extent, split_.extent - 1),
           .received = fmt::format("{} at position {}", indices[i], i),
           .remedy = "feed indices that the gathered array has"});
    }
  }

  /// Writes the initial values of rows [begin, end), columns [first, last).
  void start(const T* base, T* dx, int64_t begin, int64_t end, int64_t first, int64_t last) const {
    if (base == dx) return;
    const int64_t inner = split_.inner;
    const bool whole = first == 0 && last == inner;  // rows are adjacent
    const int64_t stretch = whole ? (end - begin) * inner : last - first;
    for (int64_t at = begin * inner + first; at < end * inner; at += whole ? stretch : inner) {
      if (base != nullptr) {
        std::copy_n(base + at, stretch, dx + at);
      } else {
        std::fill_n(dx + at, stretch, T{});
      }
      if (stretch == 0) break;
    }
  }

  /// Adds slices to a region. `order`: that of sort_by_row(), if kRounds.
  void add(const T* dy, const Index* indices, const int64_t* order, T* dx, const Region& r) const {
    const auto [outer, extent, inner] = split_;
    if (extent == 0) return;
    for (int64_t o = r.begin / extent; o * extent < r.end; ++o) {
      const T* slices = dy + o * picks_ * inner;
      if constexpr (kRounds) {
        for (int64_t i = 0, next = 0; i < picks_; i = next) {
          const int64_t index = row_of(indices[order[i]]), row = o * extent + index;
          while (next < picks_ && row_of(indices[order[next]]) == index) ++next;
          if (row >= r.begin && row < r.end)
            add_rounded(slices, {order + i, static_cast<size_t>(next - i)}, dx + row * inner, r);
        }
      } else {
        for (int64_t i = 0; i < picks_; ++i) {
          const int64_t row = o * extent + row_of(indices[i]);
          if (row < r.begin || row >= r.end) continue;
          T* to = dx + row * inner;
          const T* from = slices + i * inner;
          for (int64_t j = r.first; j < r.last; ++j) to[j] += from[j];
        }
      }
    }
  }

  /// Adds slices `picks` to a row, and rounds once.
  void add_rounded(const Bf16* slices, std::span<const int64_t> picks, Bf16* to,
                   const Region& r) const {
    constexpr int64_t kColumns = 256;
    std::array<float, kColumns> sums;
    for (int64_t j = r.first; j < r.last; j += kColumns) {
      const int64_t count = std::min(kColumns, r.last - j);
      std::copy_n(to + j, count, sums.begin());
      for (const int64_t i : picks) {
        const Bf16* from = slices + i * split_.inner + j;
        for (int64_t k = 0; k < count; ++k) sums[static_cast<size_t>(k)] += from[k];
      }
      for (int64_t k = 0; k < count; ++k)
        to[j + k].bits = float_to_bf16(sums[static_cast<size_t>(k)]);
    }
  }

  std::string node_;
  AxisSplit split_;
  int64_t picks_;
  bool has_base_;
};

template <typename T>
std::unique_ptr<Kernel> for_indices(const NodeSpec& node, AxisSplit split, std::string* why_not) {
  if (node.in(1).dtype == DType::i64) return std::make_unique<GatherGrad<T, int64_t>>(node, split);
  if (node.in(1).dtype == DType::i32) return std::make_unique<GatherGrad<T, int32_t>>(node, split);
  *why_not = "indices are neither int64 nor int32";
  return nullptr;
}

std::unique_ptr<Kernel> make_gather_grad(const NodeSpec& node, std::string* why_not) {
  const Operand& dx = node.out(0);
  const auto axis = axis_from_front(node.attrs.integer("axis"), dx.rank());
  if (!axis) return decline(why_not, "the axis is out of range");
  const AxisSplit split = split_around(dx.dims, *axis, *axis + 1);
  if (node.in(0).size() != split.outer * node.in(1).size() * split.inner) {
    *why_not = "dy does not have one slice for each index";
    return nullptr;
  }
  if (node.in(3).present() && (node.in(3).dtype != dx.dtype || node.in(3).dims != dx.dims)) {
    *why_not = "base differs from the output in dtype or shape";
    return nullptr;
  }
  if (dx.dtype == DType::f32) return for_indices<float>(node, split, why_not);
  if (dx.dtype == DType::f64) return for_indices<double>(node, split, why_not);
  if (dx.dtype == DType::bf16) return for_indices<Bf16>(node, split, why_not);
  *why_not = "dtype is not float32, float64 or bfloat16";
  return nullptr;
}

}  // namespace

void register_gather_grad(std::vector<Candidate>& list) {
  list.push_back({"steep.GatherGrad", "loops", make_gather_grad});
}

}  // namespace steep::cpu
