// Unique: distinct elements, or distinct slices along an axis, sorted or in order of appearance.
// All NaNs are one value, after all others.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "providers/cpu/convert.h"
#include "providers/cpu/data_shaped.h"

namespace steep::cpu {
namespace {

template <typename T>
int compare(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b))
      return static_cast<int>(std::isnan(a)) - static_cast<int>(std::isnan(b));
  }
  return a < b ? -1 : a > b ? 1 : 0;
}

/// `count` slices of x along an axis. `outer` and `inner`: the numbers of elements before and after
/// it.
template <typename T>
struct Slices {
  const T* x;
  int64_t count, outer, inner;

  int order(int64_t a, int64_t b) const {
    for (int64_t o = 0; o < outer; ++o) {
      const T* pa = x + (o * count + a) * inner;
      const T* pb = x + (o * count + b) * inner;
      for (int64_t i = 0; i < inner; ++i) {
        if (const int c = compare(pa[i], pb[i]); c != 0) return c;
      }
    }
    return 0;
  }
};

struct Groups {
  std::vector<int64_t> first;    // by group: index of its first slice
  std::vector<int64_t> inverse;  // by slice: index of its group
  std::vector<int64_t> counts;   // by group
};

template <typename T>
Groups group(const Slices<T>& slices, bool sorted) {
  std::vector<int64_t> order(static_cast<size_t>(slices.count));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return slices.order(a, b) < 0; });
  Groups g;
  g.inverse.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || slices.order(order[i - 1], order[i]) != 0) {
      g.first.push_back(order[i]);  // the first to appear, because the sort is stable
      g.counts.push_back(0);
    }
    ++g.counts.back();
    g.inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(g.first.size()) - 1;
  }
  if (sorted) return g;
  std::vector<int64_t> by_appearance(g.first.size());
  std::iota(by_appearance.begin(), by_appearance.end(), int64_t{0});
  std::sort(by_appearance.begin(), by_appearance.end(), [&](int64_t a, int64_t b) {
    return g.first[static_cast<size_t>(a)] < g.first[static_cast<size_t>(b)];
  });
  Groups other;
  std::vector<int64_t> rank(by_appearance.size());
  for (size_t i = 0; i < by_appearance.size(); ++i) {
    const auto from = static_cast<size_t>(by_appearance[i]);
    rank[from] = static_cast<int64_t>(i);
    other.first.push_back(g.first[from]);
    other.counts.push_back(g.counts[from]);
  }
  for (int64_t k : g.inverse) other.inverse.push_back(rank[static_cast<size_t>(k)]);
  return other;
}

Tensor vector_of(const std::vector<int64_t>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())});
}

}  // namespace

std::vector<Tensor> run_unique(const NodeSpec& node, std::span<const Tensor> inputs) {
  const Tensor& x = inputs[0];
  const bool flat = !node.attrs.has("axis");
  const int64_t axis = flat ? 0 : axis_of(node);
  Dims dims = flat ? Dims{x.size()} : x.dims();
  const int64_t count = dims[static_cast<size_t>(axis)];
  const int64_t outer = extent(dims, 0, axis);
  const int64_t inner = extent(dims, axis + 1, static_cast<int64_t>(dims.size()));
  const bool sorted = node.attrs.integer("sorted") != 0;

  Tensor comparable = x;
  if (x.dtype() == DType::f16 || x.dtype() == DType::bf16) {
    comparable = Tensor::empty(DType::f32, x.dims());
    for (int64_t i = 0; i < x.size(); ++i) {
      const uint16_t bits = static_cast<const uint16_t*>(x.data())[i];
      comparable.data<float>()[i] =
          x.dtype() == DType::f16 ? f16_to_float(bits) : bf16_to_float(bits);
    }
  }
  const Groups g = with_storage_type(comparable.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* data = static_cast<const T*>(static_cast<const Tensor&>(comparable).data());
    return group(Slices<T>{data, count, outer, inner}, sorted);
  });

  const auto groups = static_cast<int64_t>(g.first.size());
  dims[static_cast<size_t>(axis)] = groups;
  Tensor y = Tensor::empty(x.dtype(), dims);
  const size_t bytes = static_cast<size_t>(inner) * size_of(x.dtype());
  if (y.size() > 0) {
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < groups; ++i) {
        const auto from = static_cast<size_t>(o * count + g.first[static_cast<size_t>(i)]);
        std::memcpy(static_cast<std::byte*>(y.data()) + static_cast<size_t>(o * groups + i) * bytes,
                    static_cast<const std::byte*>(x.data()) + from * bytes, bytes);
      }
    }
  }
  return {y, vector_of(g.first), vector_of(g.inverse), vector_of(g.counts)};
}

}  // namespace steep::cpu
