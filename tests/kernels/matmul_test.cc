// MatMul and steep.MatMul against double-precision loops over every element.

#include "kernels/run_kernel.h"
#include "runtime/threads.h"

namespace steep::test {
namespace {

struct Case {
  Dims a, b, y;
  Ints perm_a{}, perm_b{}, perm_y{};
  double alpha = 1;
  bool bias = false;
  bool relu = false;
};

Dims strides_of(const Dims& dims) {
  Dims s(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) s[i - 1] = s[i] * dims[i];
  return s;
}

struct View {
  Dims dims, strides;
};

View view(const Dims& dims, const Ints& perm) {
  const Dims s = strides_of(dims);
  if (perm.empty()) return {dims, s};
  View v;
  for (int64_t p : perm) {
    v.dims.push_back(dims[p]);
    v.strides.push_back(s[p]);
  }
  return v;
}

/// NumPy's matmul, element by element, through index arithmetic alone.
std::vector<double> naive(const Case& c, const std::vector<double>& a, const std::vector<double>& b,
                          const std::vector<double>& bias) {
  View va = view(c.a, c.perm_a);
  View vb = view(c.b, c.perm_b);
  const bool a_vector = c.a.size() == 1;
  const bool b_vector = c.b.size() == 1;
  if (a_vector) va = {{1, c.a[0]}, {0, 1}};
  if (b_vector) vb = {{c.b[0], 1}, {1, 0}};
  while (va.dims.size() < vb.dims.size()) {
    va.dims.insert(va.dims.begin(), 1);
    va.strides.insert(va.strides.begin(), 0);
  }
  while (vb.dims.size() < va.dims.size()) {
    vb.dims.insert(vb.dims.begin(), 1);
    vb.strides.insert(vb.strides.begin(), 0);
  }
  const size_t rank = va.dims.size();
  Dims full(rank);
  for (size_t i = 0; i + 2 < rank; ++i) full[i] = va.dims[i] == 1 ? vb.dims[i] : va.dims[i];
  full[rank - 2] = va.dims[rank - 2];
  full[rank - 1] = vb.dims[rank - 1];
  Dims y_strides = strides_of(full);
  if (!c.perm_y.empty()) {
    Dims out;
    for (int64_t p : c.perm_y) out.push_back(full[p]);
    const Dims s = strides_of(out);
    for (size_t i = 0; i < rank; ++i) y_strides[c.perm_y[i]] = s[i];
  }
  std::vector<double> y(static_cast<size_t>(element_count(full)));
  for (int64_t flat = 0; flat < element_count(full); ++flat) {
    Dims at(rank);
    int64_t rest = flat;
    for (size_t i = rank; i-- > 0;) {
      at[i] = rest % full[i];
      rest /= full[i];
    }
    int64_t a_at = 0, b_at = 0, y_at = 0;
    for (size_t i = 0; i < rank; ++i) {
      y_at += at[i] * y_strides[i];
      if (i + 1 < rank && va.dims[i] != 1) a_at += at[i] * va.strides[i];
      if (i + 2 != rank && vb.dims[i] != 1) b_at += at[i] * vb.strides[i];
    }
    double sum = 0;
    for (int64_t k = 0; k < va.dims[rank - 1]; ++k) {
      sum += a[a_at + k * va.strides[rank - 1]] * b[b_at + k * vb.strides[rank - 2]];
    }
    sum = sum * c.alpha + (c.bias ? bias[at[rank - 1]] : 0);
    y[y_at] = c.relu ? std::max(sum, 0.0) : sum;
  }
  return y;
}

void check(const Case& c, DType dtype, std::string_view candidate) {
  SCOPED_TRACE(to_string(c.a) + " x " + to_string(c.b) + " -> " + to_string(c.y) + " by " +
               std::string(candidate));
  const Tensor a = random_tensor(dtype, c.a, 1);
  const Tensor b = random_tensor(dtype, c.b, 2);
  std::vector<Tensor> inputs = {a, b};
  Attrs attrs;
  std::string_view op = "MatMul";
  std::vector<double> bias;
  if (!c.perm_a.empty() || !c.perm_b.empty() || !c.perm_y.empty() || c.alpha != 1 || c.bias ||
      c.relu) {
    op = "steep.MatMul";
    if (!c.perm_a.empty()) attrs.set("perm_a", c.perm_a);
    if (!c.perm_b.empty()) attrs.set("perm_b", c.perm_b);
    if (!c.perm_y.empty()) attrs.set("perm_y", c.perm_y);
    attrs.set("alpha", c.alpha);
    if (c.relu) attrs.set("activation", std::string("Relu"));
    if (c.bias) {
      View v = view(c.b, c.perm_b);
      inputs.push_back(random_tensor(dtype, {v.dims.back()}, 3));
      bias = values(inputs[2]);
    }
  }
  const Out out{dtype, c.y};
  const Tensor two = run_one(op, inputs, out, attrs, {.threads = 2, .only = candidate});
  const Tensor one = run_one(op, inputs, out, attrs, {.threads = 1, .only = candidate});
  const double k = static_cast<double>(c.perm_a.empty() ? c.a.back() : c.a[c.perm_a.back()]);
  const double eps = dtype == DType::f64 ? 1e-14 : 1e-6;
  // The terms are of size 1: their partial sums grow as √k, and so do the k errors of rounding
  // these.
  const double rounded = 4 * eps * std::sqrt(k + 1) + eps / 10 * k;
  expect_close(two, naive(c, values(a), values(b), bias), 4 * eps,
               std::max(1.0, std::abs(c.alpha)) * rounded);
  if (!products_depend_on_threads()) expect_same_bits(one, two);
}

const std::vector<Case>& little_cases() {
  static const std::vector<Case> cases = {
      {.a = {32, 10}, .b = {10, 1}, .y = {32, 1}},
      {.a = {3}, .b = {3}, .y = {}},
      {.a = {3}, .b = {2, 3, 5}, .y = {2, 5}},
      {.a = {2, 4, 3}, .b = {3}, .y = {2, 4}},
      {.a = {1, 1}, .b = {1, 1}, .y = {1, 1}},
      {.a = {5, 7}, .b = {7, 9}, .y = {5, 9}},
      {.a = {2, 1, 3, 5}, .b = {4, 5, 2}, .y = {2, 4, 3, 2}},
      {.a = {3, 5}, .b = {4, 5, 2}, .y = {4, 3, 2}},
      {.a = {4, 3, 5}, .b = {5, 33}, .y = {4, 3, 33}},
      {.a = {10, 32}, .b = {32, 1}, .y = {10, 1}},
      {.a = {32, 10}, .b = {32, 1}, .y = {10, 1}, .perm_a = {1, 0}},
      {.a = {5, 7}, .b = {9, 7}, .y = {5, 9}, .perm_b = {1, 0}, .alpha = 0.5, .bias = true},
      {.a = {7, 5},
       .b = {9, 7},
       .y = {9, 5},
       .perm_a = {1, 0},
       .perm_b = {1, 0},
       .perm_y = {1, 0},
       .bias = true,
       .relu = true},
      {.a = {2, 5, 3, 4},
       .b = {2, 6, 3, 4},
       .y = {2, 3, 5, 6},
       .perm_a = {0, 2, 1, 3},
       .perm_b = {0, 2, 3, 1},
       .alpha = 0.25},
      {.a = {2, 3, 5, 6},
       .b = {2, 6, 3, 4},
       .y = {2, 5, 3, 4},
       .perm_b = {0, 2, 1, 3},
       .perm_y = {0, 2, 1, 3}},
      {.a = {4, 5}, .b = {5, 6}, .y = {4, 6}, .alpha = -1, .bias = true, .relu = true},
      // Whole and partial blocks of rows and vectors; operands in place, packed, and swapped.
      {.a = {13, 37}, .b = {37, 83}, .y = {13, 83}, .alpha = 0.5, .bias = true, .relu = true},
      {.a = {37, 13}, .b = {37, 50}, .y = {13, 50}, .perm_a = {1, 0}, .bias = true},
      {.a = {27, 21}, .b = {12, 21}, .y = {27, 12}, .perm_b = {1, 0}, .bias = true, .relu = true},
      {.a = {3, 11, 21},
       .b = {3, 39, 21},
       .y = {3, 39, 11},
       .perm_b = {0, 2, 1},
       .perm_y = {0, 2, 1},
       .alpha = 2,
       .bias = true,
       .relu = true},
  };
  return cases;
}

const std::vector<Case>& middling_cases() {
  static const std::vector<Case> cases = {
      {.a = {129, 65}, .b = {65, 131}, .y = {129, 131}},
      {.a = {3, 43, 65}, .b = {65, 131}, .y = {3, 43, 131}, .bias = true, .relu = true},
      {.a = {65, 129}, .b = {65, 131}, .y = {129, 131}, .perm_a = {1, 0}},
      {.a = {129, 65},
       .b = {131, 65},
       .y = {129, 131},
       .perm_b = {1, 0},
       .alpha = 0.125,
       .bias = true},
      {.a = {65, 129},
       .b = {131, 65},
       .y = {131, 129},
       .perm_a = {1, 0},
       .perm_b = {1, 0},
       .perm_y = {1, 0},
       .alpha = 2,
       .bias = true,
       .relu = true},
      {.a = {1, 700}, .b = {700, 300}, .y = {1, 300}},
      {.a = {300, 700}, .b = {700, 1}, .y = {300, 1}},
      {.a = {31, 5000}, .b = {5000, 17}, .y = {31, 17}},
      {.a = {5000, 31}, .b = {5000, 17}, .y = {31, 17}, .perm_a = {1, 0}},
      {.a = {4500, 33},
       .b = {47, 4500},
       .y = {33, 47},
       .perm_a = {1, 0},
       .perm_b = {1, 0},
       .alpha = 0.5,
       .bias = true,
       .relu = true},
      {.a = {2, 40, 8, 16},
       .b = {2, 48, 8, 16},
       .y = {2, 8, 40, 48},
       .perm_a = {0, 2, 1, 3},
       .perm_b = {0, 2, 3, 1},
       .alpha = 0.25},
      {.a = {2, 8, 40, 48},
       .b = {2, 48, 8, 16},
       .y = {2, 40, 8, 16},
       .perm_b = {0, 2, 1, 3},
       .perm_y = {0, 2, 1, 3}},
      {.a = {2, 8, 48, 40},
       .b = {2, 48, 8, 16},
       .y = {2, 8, 40, 16},
       .perm_a = {0, 1, 3, 2},
       .perm_b = {0, 2, 1, 3}},
      // One head of four: oneDNN multiplies this layout with gemm.
      {.a = {21, 4, 1017},
       .b = {4, 185, 1017},
       .y = {4, 21, 185},
       .perm_a = {1, 0, 2},
       .perm_b = {0, 2, 1}},
      {.a = {21, 2, 2, 1017},
       .b = {185, 2, 2, 1017},
       .y = {2, 21, 2, 185},
       .perm_a = {2, 1, 0, 3},
       .perm_b = {1, 2, 3, 0},
       .perm_y = {0, 2, 1, 3},
       .bias = true},
      {.a = {5, 1, 33, 17}, .b = {3, 17, 35}, .y = {5, 3, 33, 35}},
      {.a = {40, 8, 16},
       .b = {48, 8, 16},
       .y = {8, 40, 48},
       .perm_a = {1, 0, 2},
       .perm_b = {1, 2, 0}},
  };
  return cases;
}

TEST(MatMul, LittleProductsByEveryCandidate) {
  for (const Case& c : little_cases()) {
    check(c, DType::f32, "small");
    check(c, DType::f32, "reference");
    check(c, DType::f64, "small");
    check(c, DType::f64, "reference");
  }
}

/// Whether rows or columns of the result are contiguous.
bool has_unit_stride(const Case& c) {
  const auto axis = static_cast<int64_t>(c.y.size()) - 1;
  return c.perm_y.empty() || c.perm_y.back() >= axis - 1;
}

TEST(MatMul, ProductsOfAnySizeInBlocks) {
  for (const auto* cases : {&little_cases(), &middling_cases()}) {
    for (const Case& c : *cases) {
      if (!has_unit_stride(c)) continue;
      check(c, DType::f32, "blocked");
      check(c, DType::f64, "blocked");
    }
  }
}

TEST(MatMul, MiddlingProductsByOneDnnAndReference) {
  for (const Case& c : middling_cases()) {
    if (kOneDnn) check(c, DType::f32, "onednn");
    check(c, DType::f32, "reference");
    check(c, DType::f64, "reference");
  }
}

/// What multiplies large matrices.
constexpr std::string_view kLarge = kOneDnn ? "onednn" : "blocked";

/// One axis as long as a vocabulary: columns, rows, or terms of the sum.
TEST(MatMul, WideProducts) {
  const Case wide[] = {
      {.a = {260, 64}, .b = {16387, 64}, .y = {260, 16387}, .perm_b = {1, 0}, .bias = true},
      {.a = {66, 65},
       .b = {66, 16401},
       .y = {16401, 65},
       .perm_a = {1, 0},
       .perm_y = {1, 0},
       .alpha = 0.5},
      {.a = {257, 16390}, .b = {16390, 64}, .y = {257, 64}, .alpha = 2, .bias = true, .relu = true},
  };
  for (const Case& c : wide) check(c, DType::f32, kLarge);
}

Tensor random_bf16(const Dims& dims, uint32_t seed) {
  return run_one("Cast", {random_tensor(DType::f32, dims, seed)}, {DType::bf16, dims},
                 {{"to", static_cast<int64_t>(DType::bf16)}});
}

/// A product of 16-bit floats, against the float32 product of the same numbers.
void check_narrow(const Case& c, DType narrow, DType result, std::string_view candidate) {
  SCOPED_TRACE(to_string(c.a) + " x " + to_string(c.b) + " " + std::string(name_of(narrow)) +
               " -> " + std::string(name_of(result)));
  auto cast = [](const Tensor& x, DType to) {
    return run_one("Cast", {x}, {to, x.dims()}, {{"to", static_cast<int64_t>(to)}});
  };
  auto narrowed = [&](const Dims& dims, uint32_t seed) {
    return cast(random_tensor(DType::f32, dims, seed), narrow);
  };
  std::vector<Tensor> inputs = {narrowed(c.a, 1), narrowed(c.b, 2)};
  Attrs attrs{{"alpha", c.alpha}, {"dtype", static_cast<int64_t>(result)}};
  if (!c.perm_a.empty()) attrs.set("perm_a", c.perm_a);
  if (!c.perm_b.empty()) attrs.set("perm_b", c.perm_b);
  if (!c.perm_y.empty()) attrs.set("perm_y", c.perm_y);
  if (c.relu) attrs.set("activation", std::string("Relu"));
  if (c.bias) inputs.push_back(narrowed({view(c.b, c.perm_b).dims.back()}, 3));
  std::vector<Tensor> wide;
  for (const Tensor& x : inputs) wide.push_back(cast(x, DType::f32));
  const Tensor want =
      run_one("steep.MatMul", wide, {DType::f32, c.y}, attrs, {.only = "reference"});
  const Tensor one =
      run_one("steep.MatMul", inputs, {result, c.y}, attrs, {.threads = 1, .only = candidate});
  const double eps = result == DType::f32 ? 1e-4 : result == DType::bf16 ? 8e-3 : 1e-3;
  expect_close(cast(one, DType::f32), values(want), eps, eps);
  if (products_depend_on_threads()) return;
  for (const int threads : {2, 3}) {
    expect_same_bits(one, run_one("steep.MatMul", inputs, {result, c.y}, attrs,
                                  {.threads = threads, .only = candidate}));
  }
}

TEST(MatMul, WidensNarrowOperands) {
  std::vector<Case> cases = middling_cases();
  cases.insert(cases.end(), little_cases().begin(), little_cases().end());
  // More than one block of rows, columns and terms, in each layout; and no terms at all.
  cases.push_back({.a = {1030, 40}, .b = {40, 1029}, .y = {1030, 1029}, .relu = true});
  cases.push_back({.a = {1030, 40},
                   .b = {1029, 40},
                   .y = {1029, 1030},
                   .perm_b = {1, 0},
                   .perm_y = {1, 0},
                   .alpha = 0.5,
                   .bias = true});
  cases.push_back({.a = {4100, 33}, .b = {4100, 70}, .y = {33, 70}, .perm_a = {1, 0}});
  cases.push_back({.a = {33, 2049}, .b = {2049, 70}, .y = {33, 70}, .alpha = 2, .bias = true});
  cases.push_back({.a = {5, 0}, .b = {0, 3}, .y = {5, 3}, .bias = true});
  for (const Case& c : cases) {
    check_narrow(c, DType::bf16, DType::bf16, "widened");
    check_narrow(c, DType::bf16, DType::f32, "widened");
    check_narrow(c, DType::f16, DType::f16, "widened");
  }
}

/// oneDNN divides sums of 2,048 terms among threads, but none of 2,047.
TEST(MatMul, LongSumsHaveTheSameBitsForAnyNumberOfThreads) {
  if (products_depend_on_threads()) GTEST_SKIP() << "oneDNN has only its gemm";
  for (const int64_t k : {2047, 2048, 4096}) {
    SCOPED_TRACE(k);
    const Tensor a = random_tensor(DType::f32, {k, 31}, 1);
    const Tensor b = random_tensor(DType::f32, {k, 47}, 2);
    const Attrs attrs{{"perm_a", Ints{1, 0}}};
    const Tensor one = run_one("MatMul", {a, b}, {DType::f32, {31, 47}}, attrs, {.threads = 1});
    for (const int threads : {2, 3, 8}) {
      expect_same_bits(
          one, run_one("MatMul", {a, b}, {DType::f32, {31, 47}}, attrs, {.threads = threads}));
    }
  }
}

TEST(MatMul, WidenedProductsAddToExistingValues) {
  const Tensor a = random_bf16({1030, 40}, 1), b = random_bf16({40, 66}, 2);
  const Tensor before = random_tensor(DType::f32, {1030, 66}, 3);
  const Out out{DType::f32, {1030, 66}};
  const Attrs attrs{{"alpha", 1.0}, {"dtype", static_cast<int64_t>(DType::f32)}};
  const Tensor product = run_one("steep.MatMul", {a, b}, out, attrs, {.only = "widened"});
  const Tensor sum = run_one("steep.MatMul", {a, b, Tensor(), before}, out, attrs,
                             {.only = "widened", .share = {{3, 0}}});
  std::vector<double> want = values(product);
  const std::vector<double> existing = values(before);
  for (size_t i = 0; i < want.size(); ++i) want[i] += existing[i];
  expect_close(sum, want, 1e-5, 1e-5);
}

/// What a product adds to: in another array, or in that of the result. Several stretches of terms,
/// few rows, a result that is turned.
TEST(MatMul, ProductsInBlocksAddToExistingValues) {
  const Case cases[] = {
      {.a = {70, 600}, .b = {600, 83}, .y = {70, 83}},
      {.a = {600, 70}, .b = {600, 83}, .y = {70, 83}, .perm_a = {1, 0}},
      {.a = {20, 300}, .b = {300, 83}, .y = {20, 83}},
      {.a = {3, 11, 21}, .b = {3, 21, 39}, .y = {3, 39, 11}, .perm_y = {0, 2, 1}},
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Case& c : cases) {
      Attrs attrs{{"alpha", 1.0}};
      if (!c.perm_a.empty()) attrs.set("perm_a", c.perm_a);
      if (!c.perm_y.empty()) attrs.set("perm_y", c.perm_y);
      const Tensor a = random_tensor(dtype, c.a, 1), b = random_tensor(dtype, c.b, 2);
      const Tensor before = random_tensor(dtype, c.y, 3);
      std::vector<double> want = naive(c, values(a), values(b), {});
      const std::vector<double> existing = values(before);
      for (size_t i = 0; i < want.size(); ++i) want[i] += existing[i];
      const std::vector<Tensor> inputs = {a, b, Tensor(), before};
      const Tensor apart =
          run_one("steep.MatMul", inputs, {dtype, c.y}, attrs, {.only = "blocked"});
      expect_close(apart, want, 1e-4, 1e-4);
      expect_same_bits(apart, run_one("steep.MatMul", inputs, {dtype, c.y}, attrs,
                                      {.threads = 1, .only = "blocked", .share = {{3, 0}}}));
    }
  }
}

/// Widened blocks are of a bounded size: the operands of a vocabulary would take 64 MiB.
TEST(MatMul, WideningTakesLittleMemory) {
  const Attrs attrs{
      {"alpha", 1.0}, {"activation", std::string()}, {"dtype", static_cast<int64_t>(DType::bf16)}};
  const NodeSpec node{.name = "scores",
                      .op = "steep.MatMul",
                      .attrs = attrs,
                      .inputs = {{DType::bf16, {2048, 512}}, {DType::bf16, {512, 32768}}},
                      .outputs = {{DType::bf16, {2048, 32768}}}};
  std::string why_not;
  const auto made = cpu::make_kernel(node, "widened", &why_not);
  ASSERT_NE(made.kernel, nullptr) << why_not;
  EXPECT_LT(made.kernel->scratch_bytes, size_t{32} << 20);
}

TEST(MatMul, NarrowProductsHaveTheSameBitsForAnyNumberOfThreads) {
  if (products_depend_on_threads()) GTEST_SKIP() << "oneDNN has only its gemm";
  struct Shape {
    Dims a, b, y;
    Ints perm_a{}, perm_b{}, perm_y{};
  };
  const Shape shapes[] = {
      {.a = {260, 64}, .b = {16387, 64}, .y = {260, 16387}, .perm_b = {1, 0}},
      {.a = {300, 65}, .b = {300, 16401}, .y = {16401, 65}, .perm_a = {1, 0}, .perm_y = {1, 0}},
      {.a = {257, 16390}, .b = {16390, 64}, .y = {257, 64}},
      {.a = {4096, 33}, .b = {4096, 40}, .y = {33, 40}, .perm_a = {1, 0}},
      {.a = {7, 9000}, .b = {9000, 5}, .y = {7, 5}},
      {.a = {2, 3000, 3, 40},
       .b = {2, 3000, 3, 50},
       .y = {2, 3, 40, 50},
       .perm_a = {0, 2, 3, 1},
       .perm_b = {0, 2, 1, 3}},
      {.a = {20, 3, 3000},
       .b = {3000, 3, 40},
       .y = {3, 20, 40},
       .perm_a = {1, 0, 2},
       .perm_b = {1, 0, 2}},
      {.a = {6, 16, 128}, .b = {6, 128, 16}, .y = {6, 16, 16}},
      {.a = {130, 40}, .b = {150, 40}, .y = {130, 150}, .perm_b = {1, 0}},
  };
  for (const Shape& s : shapes) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      Attrs attrs{{"dtype", static_cast<int64_t>(dtype)}};
      if (!s.perm_a.empty()) attrs.set("perm_a", s.perm_a);
      if (!s.perm_b.empty()) attrs.set("perm_b", s.perm_b);
      if (!s.perm_y.empty()) attrs.set("perm_y", s.perm_y);
      const std::vector<Tensor> in{random_bf16(s.a, 1), random_bf16(s.b, 2)};
      const Tensor one = run_one("steep.MatMul", in, {dtype, s.y}, attrs, {.threads = 1});
      for (int threads : {2, 3, 8}) {
        SCOPED_TRACE(to_string(s.a) + " " + std::string(name_of(dtype)) + " " +
                     std::to_string(threads));
        expect_same_bits(one,
                         run_one("steep.MatMul", in, {dtype, s.y}, attrs, {.threads = threads}));
      }
      SCOPED_TRACE(to_string(s.a) + " " + std::string(name_of(dtype)) + ", made for one thread");
      const ThreadBound alone(1);
      expect_same_bits(one, run_one("steep.MatMul", in, {dtype, s.y}, attrs, {.threads = 8}));
    }
  }
}

/// Sums whose length does not fill AMX tiles, in each layout of the operands, and large enough that
/// copying the operands pays.
TEST(MatMul, NarrowSumsThatFillNoTile) {
  if (!cpu::has_products(DType::bf16)) GTEST_SKIP() << "oneDNN does not multiply bfloat16 here";
  struct Layout {
    Dims a, b;
    Ints perm_a, perm_b;
  };
  const Layout layouts[] = {{{130, 40}, {150, 40}, {0, 1}, {1, 0}},
                            {{130, 40}, {40, 150}, {0, 1}, {0, 1}},
                            {{40, 130}, {40, 150}, {1, 0}, {0, 1}},
                            {{40, 130}, {150, 40}, {1, 0}, {1, 0}}};
  for (const Layout& l : layouts) {
    SCOPED_TRACE(to_string(l.a) + to_string(l.b));
    const Tensor a = random_bf16(l.a, 1), b = random_bf16(l.b, 2);
    auto wide = [](const Tensor& x) {
      return run_one("Cast", {x}, {DType::f32, x.dims()},
                     {{"to", static_cast<int64_t>(DType::f32)}});
    };
    const Attrs attrs{
        {"dtype", static_cast<int64_t>(DType::f32)}, {"perm_a", l.perm_a}, {"perm_b", l.perm_b}};
    const Out out{DType::f32, {130, 150}};
    const Tensor want =
        run_one("steep.MatMul", {wide(a), wide(b)}, out, attrs, {.only = "reference"});
    expect_close(run_one("steep.MatMul", {a, b}, out, attrs, {.candidate = "onednn"}), values(want),
                 1e-5, 1e-5);
  }
}

/// Layouts for which releases of oneDNN have been wrong. Ours is right; a newer one has to be, too.
TEST(MatMul, LayoutsThatOneDnnHadWrong) {
  const Case cases[] = {
      // oneDNN#6015: one term, b transposed or with gaps in its batch
      {.a = {16, 32, 1}, .b = {1, 16, 513}, .y = {16, 32, 513}, .perm_b = {1, 0, 2}},
      {.a = {16, 32, 1}, .b = {513, 16, 1}, .y = {16, 32, 513}, .perm_b = {1, 2, 0}},
      {.a = {2, 1, 1}, .b = {2, 16, 1}, .y = {2, 1, 16}, .perm_b = {0, 2, 1}},
      // oneDNN#3060: rows of a longer than the sum
      {.a = {20, 2, 36}, .b = {2, 36, 108}, .y = {2, 20, 108}, .perm_a = {1, 0, 2}},
      // oneDNN#6002: one row, transposed result
      {.a = {4, 1, 66}, .b = {4, 66, 108}, .y = {4, 108, 1}, .perm_y = {0, 2, 1}},
      // oneDNN#5471: rank 4 with an outer extent of 1
      {.a = {13, 1, 3, 4}, .b = {4, 16}, .y = {13, 1, 3, 16}},
      {.a = {1, 3, 20, 36}, .b = {1, 1, 36, 40}, .y = {1, 3, 20, 40}},
      // oneDNN#2180: b is [batch, columns, heads, terms]
      {.a = {3, 5, 2, 33},
       .b = {3, 40, 2, 33},
       .y = {3, 2, 5, 40},
       .perm_a = {0, 2, 1, 3},
       .perm_b = {0, 2, 3, 1}},
  };
  if (!kOneDnn) GTEST_SKIP() << "built without oneDNN";
  for (const Case& c : cases) {
    check(c, DType::f32, "onednn");
    if (cpu::has_products(DType::bf16)) check_narrow(c, DType::bf16, DType::f32, "onednn");
  }
}

TEST(MatMul, LittleProductsByOneDnn) {
  if (!kOneDnn) GTEST_SKIP() << "built without oneDNN";
  for (const Case& c : little_cases()) check(c, DType::f32, "onednn");
}

TEST(MatMul, ChoosesByCost) {
  run_one("MatMul", {random_tensor(DType::f32, {32, 10}), random_tensor(DType::f32, {10, 1})},
          {DType::f32, {32, 1}}, {}, {.candidate = "small"});
  run_one("MatMul", {random_tensor(DType::f32, {64, 64}), random_tensor(DType::f32, {64, 64})},
          {DType::f32, {64, 64}}, {}, {.candidate = "small"});
  run_one("MatMul", {random_tensor(DType::f32, {96, 96}), random_tensor(DType::f32, {96, 96})},
          {DType::f32, {96, 96}}, {}, {.candidate = kLarge});
}

TEST(MatMul, EmptyOperands) {
  EXPECT_EQ(
      run_one("MatMul", {random_tensor(DType::f32, {0, 4}), random_tensor(DType::f32, {4, 5})},
              {DType::f32, {0, 5}})
          .size(),
      0);
  expect_close(
      run_one("MatMul", {random_tensor(DType::f32, {2, 0}), random_tensor(DType::f32, {0, 3})},
              {DType::f32, {2, 3}}),
      std::vector<double>(6, 0.0));
  const auto bias = Tensor::from<float>({1, -2, 3}, {3});
  const Attrs relu = {{"activation", std::string("Relu")}};
  expect_close(run_one("steep.MatMul",
                       {random_tensor(DType::f32, {2, 0}), random_tensor(DType::f32, {0, 3}), bias},
                       {DType::f32, {2, 3}}, relu),
               {1, 0, 3, 1, 0, 3});
  EXPECT_EQ(
      run_one("MatMul", {random_tensor(DType::f32, {0, 3, 4}), random_tensor(DType::f32, {4, 2})},
              {DType::f32, {0, 3, 2}})
          .size(),
      0);
}

TEST(MatMul, Integers) {
  const auto a = Tensor::from<int64_t>({1, 2, 3, 4}, {2, 2});
  const auto b = Tensor::from<int64_t>({5, 6, 7, INT64_MAX}, {2, 2});
  const Tensor y = run_one("MatMul", {a, b}, {DType::i64, {2, 2}});
  // 6 + 2 * INT64_MAX and 18 + 4 * INT64_MAX wrap.
  EXPECT_EQ(y.to_ints(), (std::vector<int64_t>{19, 4, 43, 14}));
  const auto c = Tensor::from<int32_t>({1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(run_one("MatMul", {c, c}, {DType::i32, {2, 2}}).to_ints(),
            (std::vector<int64_t>{7, 10, 15, 22}));
}

TEST(MatMul, ReluKeepsNan) {
  Tensor a = random_tensor(DType::f32, {64, 64});
  a.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  const Tensor b = random_tensor(DType::f32, {64, 64}, 2);
  const Attrs relu = {{"activation", std::string("Relu")}};
  for (std::string_view candidate :
       std::initializer_list<std::string_view>{"small", kLarge, "reference"}) {
    const Tensor y =
        run_one("steep.MatMul", {a, b}, {DType::f32, {64, 64}}, relu, {.only = candidate});
    EXPECT_TRUE(std::isnan(y.data<float>()[0])) << candidate;
    EXPECT_GE(y.data<float>()[64], 0) << candidate;
  }
}

}  // namespace
}  // namespace steep::test
