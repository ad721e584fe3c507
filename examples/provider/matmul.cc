// MatMul, and steep.MatMul(a, b, bias?, addend?){perm_a, perm_b, perm_y, alpha, activation}.
#include <algorithm>

#include "kernels.h"

namespace mirror {
namespace {

Dims row_major(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

/// Extents and strides of an operand after its permutation.
struct Seen {
  Dims dims, strides;
};

Seen permuted(const Operand& x, const Dims& perm) {
  const Dims strides = row_major(x.dims);
  if (perm.empty()) return {x.dims, strides};
  Seen seen;
  for (int64_t axis : perm) {
    seen.dims.push_back(x.dims[static_cast<size_t>(axis)]);
    seen.strides.push_back(strides[static_cast<size_t>(axis)]);
  }
  return seen;
}

/// The strides of an operand's leading axes along the batch of the result.
Dims batch_strides(const Seen& x, size_t rank) {
  Dims strides(rank, 0);
  const size_t own = x.dims.size() - 2;
  for (size_t i = 0; i < own; ++i) {
    if (x.dims[i] != 1) strides[rank - own + i] = x.strides[i];
  }
  return strides;
}

struct Product {
  int64_t m, n, k;
  Dims batch;          // extents
  Dims a, b, y, bias;  // strides along the batch
  int64_t a_row, a_col, b_row, b_col, y_row, y_col, bias_row = 0, bias_col = 0;
  float alpha;
  bool relu, has_bias, has_addend;

  void run(const Pointers& at) const {
    std::vector<float> columns(static_cast<size_t>(k * n)), row(static_cast<size_t>(n));
    int64_t count = 1;
    for (int64_t d : batch) count *= d;
    Dims index(batch.size(), 0);
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i, oa = 0, ob = 0, oy = 0, obias = 0;
      for (size_t d = batch.size(); d-- > 0;) {
        const int64_t position = rest % batch[d];
        rest /= batch[d];
        oa += position * a[d], ob += position * b[d], oy += position * y[d];
        if (has_bias) obias += position * bias[d];
      }
      one(at, oa, ob, oy, obias, columns, row);
    }
  }

  void one(const Pointers& at, int64_t oa, int64_t ob, int64_t oy, int64_t obias,
           std::vector<float>& columns, std::vector<float>& row) const {
    for (int64_t r = 0; r < k; ++r) {
      for (int64_t c = 0; c < n; ++c)
        columns[static_cast<size_t>(r * n + c)] = at.f(1)[ob + r * b_row + c * b_col];
    }
    for (int64_t r = 0; r < m; ++r) {
      std::fill(row.begin(), row.end(), 0.0F);
      for (int64_t d = 0; d < k; ++d) {
        const float x = at.f(0)[oa + r * a_row + d * a_col];
        const float* from = columns.data() + d * n;
        for (int64_t c = 0; c < n; ++c) row[static_cast<size_t>(c)] += x * from[c];
      }
      for (int64_t c = 0; c < n; ++c) {
        float v = alpha * row[static_cast<size_t>(c)];
        if (has_bias) v += at.f(2)[obias + r * bias_row + c * bias_col];
        if (relu && v < 0) v = 0;
        const int64_t to = oy + r * y_row + c * y_col;
        at.y(0)[to] = has_addend ? v + at.f(3)[to] : v;
      }
    }
  }
};

}  // namespace

std::optional<Kernel> make_matmul(const Node& node, std::string& why) {
  if (!all_floats(node, why)) return std::nullopt;
  const bool fused = node.op() == "steep.MatMul";
  const std::string activation = fused ? node.string("activation") : "";
  if (!activation.empty() && activation != "Relu") return decline(why, activation + " behind it");
  const Seen a = permuted(node.in(0), node.ints("perm_a"));
  const Seen b = permuted(node.in(1), node.ints("perm_b"));
  const size_t ra = a.dims.size(), rb = b.dims.size();
  if (ra < 2 || rb < 2) return decline(why, "an operand is a vector");
  const size_t rank = std::max(ra, rb) - 2;

  Product p{};
  p.m = a.dims[ra - 2], p.k = a.dims[ra - 1], p.n = b.dims[rb - 1];
  p.a_row = a.strides[ra - 2], p.a_col = a.strides[ra - 1];
  p.b_row = b.strides[rb - 2], p.b_col = b.strides[rb - 1];
  p.a = batch_strides(a, rank), p.b = batch_strides(b, rank);
  p.alpha = fused ? static_cast<float>(node.real("alpha")) : 1;
  p.relu = !activation.empty();
  p.has_bias = node.in(2).present();
  p.has_addend = node.in(3).present();

  // Before its permutation the result has the batch axes, then rows and columns.
  const Dims perm_y = node.ints("perm_y");
  const Operand y = node.out(0);
  const Dims stored = row_major(y.dims);
  Dims dims(y.dims.size()), strides(y.dims.size());
  for (size_t i = 0; i < y.dims.size(); ++i) {
    const size_t from = perm_y.empty() ? i : static_cast<size_t>(perm_y[i]);
    dims[from] = y.dims[i], strides[from] = stored[i];
  }
  p.batch.assign(dims.begin(), dims.end() - 2);
  p.y.assign(strides.begin(), strides.end() - 2);
  p.y_row = strides[rank], p.y_col = strides[rank + 1];
  if (p.has_bias) {
    const Dims bias = broadcast_strides(dims, node.in(2).dims);
    p.bias.assign(bias.begin(), bias.end() - 2);
    p.bias_row = bias[rank], p.bias_col = bias[rank + 1];
  }
  Kernel kernel;
  kernel.bind = [p](const Pointers& at) { return [&p, at] { p.run(at); }; };
  return kernel;
}

}  // namespace mirror
