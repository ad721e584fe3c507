// TopK: sorts each line of the axis as far as needed. NaN counts as the largest number, as in
// PyTorch. Equal elements keep their order. steep.TopK selects as PyTorch's topk does
// (aten/src/ATen/native/TopKImpl.h), where the C++ library's selection decides among equal
// elements.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "providers/cpu/axis.h"
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

template <typename T>
bool above(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(b)) return false;
    if (std::isnan(a)) return true;
  }
  return a > b;
}

template <typename T>
struct TopK {
  AxisSplit split;
  int64_t k;
  bool largest;

  void operator()(const KernelArgs& args) const {
    const T* x = args.input<T>(0);
    T* values = args.output<T>(0);
    auto* indices = args.output<int64_t>(1);
    auto* scratch = static_cast<int64_t*>(args.scratch);
    const int64_t n = split.extent, inner = split.inner;
    parallel_for(split.outer * inner, grain_of(4096, n), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        int64_t* order = scratch + line * n;
        const T* from = x + line / inner * n * inner + line % inner;
        std::iota(order, order + n, 0);
        std::partial_sort(order, order + k, order + n, [&](int64_t i, int64_t j) {
          const T a = from[i * inner], b = from[j * inner];
          if (largest ? above(a, b) : above(b, a)) return true;
          if (largest ? above(b, a) : above(a, b)) return false;
          return i < j;
        });
        const int64_t to = line / inner * k * inner + line % inner;
        for (int64_t i = 0; i < k; ++i) {
          if (values != nullptr) values[to + i * inner] = from[order[i] * inner];
          if (indices != nullptr) indices[to + i * inner] = order[i];
        }
      }
    });
  }
};

template <typename T>
struct SelectAsTorch {
  AxisSplit split;
  int64_t k;
  bool largest, sorted;

  using Element = std::pair<T, int64_t>;

  void select(Element* line, int64_t n) const {
    const auto before = [this](const Element& a, const Element& b) {
      return largest ? above(a.first, b.first) : above(b.first, a.first);
    };
    if (k * 64 <= n) {
      std::partial_sort(line, line + k, line + n, before);
      return;
    }
    std::nth_element(line, line + k - 1, line + n, before);
    if (sorted) std::sort(line, line + k - 1, before);
  }

  void operator()(const KernelArgs& args) const {
    const T* x = args.input<T>(0);
    T* values = args.output<T>(0);
    auto* indices = args.output<int64_t>(1);
    auto* scratch = static_cast<Element*>(args.scratch);
    const int64_t n = split.extent, inner = split.inner;
    if (k == 0) return;
    parallel_for(split.outer * inner, grain_of(4096, n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Element* line = scratch + i * n;
        const T* from = x + i / inner * n * inner + i % inner;
        for (int64_t j = 0; j < n; ++j) line[j] = {from[j * inner], j};
        select(line, n);
        const int64_t to = i / inner * k * inner + i % inner;
        for (int64_t j = 0; j < k; ++j) {
          if (values != nullptr) values[to + j * inner] = line[j].first;
          if (indices != nullptr) indices[to + j * inner] = line[j].second;
        }
      }
    });
  }
};

std::unique_ptr<Kernel> make_top_k(const NodeSpec& node, std::string* why_not) {
  if (node.outputs.size() != 2) return decline(why_not, "it does not have two outputs");
  const Operand& x = node.in(0);
  const Operand& y = node.out(0).present() ? node.out(0) : node.out(1);
  const auto axis = axis_from_front(node.attrs.integer("axis"), x.rank());
  if (!axis) return decline(why_not, "the axis is out of range");
  if (x.dtype == DType::f16 || x.dtype == DType::bf16 || x.dtype == DType::boolean)
    return decline(why_not, "dtype is {}", name_of(x.dtype));
  const int64_t k = y.dims[static_cast<size_t>(*axis)];
  if (k > x.dims[static_cast<size_t>(*axis)]) return decline(why_not, "k exceeds the axis");
  const bool largest = node.attrs.integer("largest") != 0;
  return with_storage_type(x.dtype, [&]<typename T>(T*) -> std::unique_ptr<Kernel> {
    if (node.op == "steep.TopK") {
      using Select = SelectAsTorch<T>;
      return kernel_from(Select{split_around(x.dims, *axis, *axis + 1), k, largest,
                                node.attrs.integer("sorted") != 0},
                         static_cast<size_t>(x.size()) * sizeof(typename Select::Element));
    }
    return kernel_from(TopK<T>{split_around(x.dims, *axis, *axis + 1), k, largest},
                       static_cast<size_t>(x.size()) * sizeof(int64_t));
  });
}

}  // namespace

void register_top_k(std::vector<Candidate>& list) {
  list.push_back({"TopK", "partial sort", make_top_k});
  list.push_back({"steep.TopK", "selection", make_top_k});
}

}  // namespace steep::cpu
