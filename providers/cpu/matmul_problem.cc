// Converts shapes and permutations to strides, with as few batch dimensions as possible.

#include <algorithm>
#include <numeric>
#include <utility>

#include "providers/cpu/choice.h"
#include "providers/cpu/matmul.h"

namespace steep::cpu {
namespace {

struct View {
  Dims dims;
  Dims strides;
};

Dims dense_strides(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

bool is_permutation(const Ints& perm, size_t rank) {
  Ints sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != static_cast<int64_t>(i)) return false;
  }
  return sorted.size() == rank;
}

/// The operand after its permutation, as the product reads it.
std::optional<View> permuted(const Dims& dims, Ints perm) {
  if (perm.empty()) {
    perm.resize(dims.size());
    std::iota(perm.begin(), perm.end(), 0);
  }
  if (!is_permutation(perm, dims.size())) return std::nullopt;
  const Dims strides = dense_strides(dims);
  View view;
  for (int64_t axis : perm) {
    view.dims.push_back(dims[axis]);
    view.strides.push_back(strides[axis]);
  }
  return view;
}

/// The output before its permutation.
std::optional<View> unpermuted(const Dims& dims, const Ints& perm) {
  if (perm.empty()) return View{dims, dense_strides(dims)};
  if (!is_permutation(perm, dims.size())) return std::nullopt;
  const Dims strides = dense_strides(dims);
  View view{Dims(dims.size()), Dims(dims.size())};
  for (size_t i = 0; i < perm.size(); ++i) {
    view.dims[perm[i]] = dims[i];
    view.strides[perm[i]] = strides[i];
  }
  return view;
}

void insert_axis(View* view, size_t at) {
  view->dims.insert(view->dims.begin() + at, 1);
  view->strides.insert(view->strides.begin() + at, 0);
}

void add_batch(MatMulProblem* p, int64_t extent, int64_t a, int64_t b, int64_t y) {
  if (extent == 1) return;
  if (!p->batch.empty() && p->a_batch.back() == a * extent && p->b_batch.back() == b * extent &&
      p->y_batch.back() == y * extent) {
    p->batch.back() *= extent;
    p->a_batch.back() = a;
    p->b_batch.back() = b;
    p->y_batch.back() = y;
    return;
  }
  p->batch.push_back(extent);
  p->a_batch.push_back(a);
  p->b_batch.push_back(b);
  p->y_batch.push_back(y);
}

/// If the whole batch has one matrix b: merges batch indices of a into rows if these are evenly
/// spaced in memory.
void merge_batch_into_rows(MatMulProblem* p) {
  while (!p->batch.empty() && p->b_batch.back() == 0 && p->a_batch.back() != 0) {
    const int64_t a = p->a_batch.back();
    const int64_t y = p->y_batch.back();
    if (p->m != 1 && (a != p->a_m * p->m || y != p->y_m * p->m)) return;
    if (p->m == 1) {
      p->a_m = a;
      p->y_m = y;
    }
    p->m *= p->batch.back();
    p->batch.pop_back();
    p->a_batch.pop_back();
    p->b_batch.pop_back();
    p->y_batch.pop_back();
  }
}

/// Axes with one element may have any stride; gives them that of a dense matrix.
void tidy(int64_t rows, int64_t columns, int64_t* row_stride, int64_t* column_stride) {
  if (columns == 1) *column_stride = 1;
  if (rows == 1) *row_stride = *column_stride == 1 ? std::max<int64_t>(columns, 1) : 1;
}

/// Operands and result as the product sees them: with equal ranks, at least two.
struct Factors {
  View a, b, y;
};

/// Returns null on success, else the reason why the operands do not fit.
const char* read_factors(const NodeSpec& node, std::optional<Factors>* factors) {
  auto a = permuted(node.in(0).dims, node.attrs.ints("perm_a"));
  auto b = permuted(node.in(1).dims, node.attrs.ints("perm_b"));
  auto y = unpermuted(node.out(0).dims, node.attrs.ints("perm_y"));
  if (!a || !b || !y) return "perm_a, perm_b or perm_y is not a permutation";
  if (b->dims.size() == 1) {
    insert_axis(&*b, 1);
    insert_axis(&*y, y->dims.size());
  }
  if (a->dims.size() == 1) {
    insert_axis(&*a, 0);
    insert_axis(&*y, y->dims.size() - 1);
  }
  const size_t rank = std::max(a->dims.size(), b->dims.size());
  while (a->dims.size() < rank) insert_axis(&*a, 0);
  while (b->dims.size() < rank) insert_axis(&*b, 0);
  if (y->dims.size() != rank) return "output rank does not fit";
  *factors = Factors{*a, *b, *y};
  return nullptr;
}

/// Sets extents and strides of the problem. Returns null on success, else the reason.
const char* set_extents(const Factors& f, MatMulProblem* p) {
  const View &a = f.a, &b = f.b, &y = f.y;
  const size_t r = y.dims.size() - 2;
  p->m = a.dims[r];
  p->k = a.dims[r + 1];
  p->n = b.dims[r + 1];
  if (b.dims[r] != p->k || y.dims[r] != p->m || y.dims[r + 1] != p->n)
    return "extents do not multiply";
  for (size_t i = 0; i < r; ++i) {
    const int64_t extent = y.dims[i];
    auto stride = [&](const View& v) { return v.dims[i] == 1 ? 0 : v.strides[i]; };
    for (const View* v : {&a, &b}) {
      if (v->dims[i] != 1 && v->dims[i] != extent) return "batch extents do not broadcast";
    }
    add_batch(p, extent, stride(a), stride(b), y.strides[i]);
  }
  p->a_m = a.strides[r];
  p->a_k = a.strides[r + 1];
  p->b_k = b.strides[r];
  p->b_n = b.strides[r + 1];
  p->y_m = y.strides[r];
  p->y_n = y.strides[r + 1];
  merge_batch_into_rows(p);
  tidy(p->m, p->k, &p->a_m, &p->a_k);
  tidy(p->k, p->n, &p->b_k, &p->b_n);
  tidy(p->m, p->n, &p->y_m, &p->y_n);
  return nullptr;
}

/// Sets alpha, bias, activation and addend. Returns null on success, else the reason.
const char* set_epilogue(const NodeSpec& node, bool takes_addend, MatMulProblem* p) {
  const Operand &bias = node.in(2), &addend = node.in(3);
  if (node.op == "steep.MatMul") {  // ONNX's MatMul has none of these
    p->alpha = node.attrs.real("alpha");
    const std::string activation = node.attrs.string("activation");
    if (!activation.empty() && activation != "Relu") return "unknown activation";
    p->relu = activation == "Relu";
  }
  p->bias = bias.present();
  if (p->bias && bias.size() != p->n) return "bias does not have one element a column";
  p->addend = addend.present();
  if (p->addend && !takes_addend) return "an addend is not supported";
  if (p->addend && (addend.dtype != p->y_dtype || addend.dims != node.out(0).dims))
    return "the addend is not like the result";
  return nullptr;
}

}  // namespace

ProductKind kind_of(const MatMulProblem& p) {
  constexpr int64_t kWide = 16384;  // an axis as long as a vocabulary
  if (std::max({p.m, p.n, p.k}) >= kWide) return ProductKind::wide;
  if (p.a_k != 1) return ProductKind::turned_a;
  return p.b_n == 1 ? ProductKind::plain : ProductKind::turned_b;
}

int64_t MatMulProblem::batch_count() const { return element_count(batch); }

MatMulProblem MatMulProblem::swap() const {
  MatMulProblem p = *this;
  std::swap(p.a_batch, p.b_batch);
  p.m = n;
  p.n = m;
  p.a_m = b_n;
  p.a_k = b_k;
  p.b_k = a_k;
  p.b_n = a_m;
  p.y_m = y_n;
  p.y_n = y_m;
  p.bias_on_rows = !bias_on_rows;
  p.swapped = !swapped;
  return p;
}

std::optional<MatMulProblem> read_matmul(const NodeSpec& node, std::string* why_not,
                                         bool takes_addend) {
  auto decline = [&](const char* reason) {
    *why_not = reason;
    return std::nullopt;
  };
  const Operand& a = node.in(0);
  const Operand& b = node.in(1);
  const Operand& bias = node.in(2);
  const bool narrow = a.dtype == DType::bf16 || a.dtype == DType::f16;
  auto fits = [&](DType t) { return t == a.dtype || (narrow && t == DType::f32); };
  if (a.dtype != b.dtype || !fits(node.out(0).dtype)) return decline("dtypes differ");
  if (bias.present() && !fits(bias.dtype)) return decline("bias has another dtype");
  if (a.rank() < 1 || b.rank() < 1) return decline("an operand is a scalar");

  std::optional<Factors> factors;
  if (const char* why = read_factors(node, &factors)) return decline(why);
  MatMulProblem p;
  p.dtype = a.dtype;
  p.y_dtype = node.out(0).dtype;
  p.bias_dtype = bias.dtype;
  if (const char* why = set_extents(*factors, &p)) return decline(why);
  if (const char* why = set_epilogue(node, takes_addend, &p)) return decline(why);
  return p;
}

}  // namespace steep::cpu
