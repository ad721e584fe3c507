// Reductions against sums in long double.
#include <functional>

#include "steep/error.h"
#include "tests/kernels/run_kernel.h"

namespace steep::test {
namespace {

struct Row {
  const char* op;
  std::function<double(const std::vector<double>&)> f;
};

template <typename F>
double sum_of(const std::vector<double>& v, F f) {
  long double s = 0;
  for (double x : v) s += f(x);
  return static_cast<double>(s);
}

std::vector<Row> rows() {
  auto same = [](double x) { return x; };
  auto square = [](double x) { return x * x; };
  return {
      {"ReduceSum", [=](const auto& v) { return sum_of(v, same); }},
      {"ReduceMean",
       [=](const auto& v) { return sum_of(v, same) / static_cast<double>(v.size()); }},
      {"ReduceMax", [](const auto& v) { return *std::max_element(v.begin(), v.end()); }},
      {"ReduceMin", [](const auto& v) { return *std::min_element(v.begin(), v.end()); }},
      {"ReduceProd",
       [](const auto& v) {
         double p = 1;
         for (double x : v) p *= x;
         return p;
       }},
      {"ReduceL1", [](const auto& v) { return sum_of(v, [](double x) { return std::abs(x); }); }},
      {"ReduceL2", [=](const auto& v) { return std::sqrt(sum_of(v, square)); }},
      {"ReduceSumSquare", [=](const auto& v) { return sum_of(v, square); }},
      {"ReduceLogSum", [=](const auto& v) { return std::log(sum_of(v, same)); }},
      {"ReduceLogSumExp",
       [](const auto& v) { return std::log(sum_of(v, [](double x) { return std::exp(x); })); }},
  };
}

/// For each output element, in order: the elements of x that are reduced to it.
std::vector<std::vector<double>> groups_of(const Tensor& x, const std::vector<bool>& reduced) {
  const Dims& dims = x.dims();
  int64_t count = 1;
  for (size_t a = 0; a < dims.size(); ++a) count *= reduced[a] ? 1 : dims[a];
  std::vector<std::vector<double>> groups(static_cast<size_t>(count));
  const auto v = values(x);
  for (int64_t i = 0; i < x.size(); ++i) {
    int64_t rest = i, out = 0, stride = 1;
    for (size_t a = dims.size(); a-- > 0;) {
      if (!reduced[a]) {
        out += rest % dims[a] * stride;
        stride *= dims[a];
      }
      rest /= dims[a];
    }
    groups[static_cast<size_t>(out)].push_back(v[static_cast<size_t>(i)]);
  }
  return groups;
}

void check(const Row& row, DType dtype, const Dims& dims, const Ints& axes, double rtol) {
  SCOPED_TRACE(std::string(row.op) + to_string(dims) + " over " + to_string(axes));
  Tensor x = random_tensor(dtype, dims);
  if (std::string_view(row.op) == "ReduceLogSum") {  // needs positive numbers
    const Out out{dtype, dims};
    x = run_one("Abs", {x}, out);
  }
  std::vector<bool> reduced(dims.size(), axes.empty());
  for (int64_t a : axes)
    reduced[static_cast<size_t>(a < 0 ? a + static_cast<int64_t>(dims.size()) : a)] = true;
  Dims kept = dims;
  for (size_t a = 0; a < dims.size(); ++a) {
    if (reduced[a]) kept[a] = 1;
  }
  std::vector<double> want;
  for (const auto& g : groups_of(x, reduced)) want.push_back(row.f(g));
  std::vector<Tensor> inputs = {x};
  if (!axes.empty()) inputs.push_back(Tensor::from(axes, {static_cast<int64_t>(axes.size())}));
  const Tensor y = run_one(row.op, inputs, {dtype, kept});
  // Cancellation leaves the rounding errors of the terms, so the tolerance grows with their number.
  const double magnitude = static_cast<double>(x.size()) / static_cast<double>(y.size());
  expect_close(y, want, rtol, rtol * std::max(1.0, magnitude / 100));
  expect_same_bits(y, run_one(row.op, inputs, {dtype, kept}, {}, {.threads = 1}));
}

TEST(Reduce, EveryOpOverEveryKindOfAxes) {
  const std::vector<std::pair<Dims, Ints>> cases = {
      {{3, 4, 5}, {}},        {{3, 4, 5}, {0}},    {{3, 4, 5}, {1}},
      {{3, 4, 5}, {-1}},      {{3, 4, 5}, {0, 2}}, {{2, 3, 4, 5}, {0, 2}},
      {{2, 3, 4, 5}, {1, 3}}, {{7}, {0}},          {{}, {}},
      {{5, 1, 3}, {1}},       {{130, 3}, {0}},     {{9, 200}, {1}},
      {{70, 8}, {1}},         {{9000, 11}, {1}},
  };
  for (const Row& row : rows()) {
    for (const auto& [dims, axes] : cases) {
      check(row, DType::f32, dims, axes, 2e-6);
      check(row, DType::f64, dims, axes, 1e-12);
    }
  }
}

TEST(Reduce, LargeSumsAreAccurateAndDeterministic) {
  const auto all = rows();
  for (const Row& row : all) {
    if (std::string_view(row.op) == "ReduceProd") continue;
    check(row, DType::f32, {300000}, {}, 2e-6);
    check(row, DType::f32, {4100, 513}, {0}, 4e-6);
    check(row, DType::f32, {3, 70000}, {1}, 2e-6);
    check(row, DType::f32, {40, 3000}, {0}, 2e-6);
  }
}

TEST(Reduce, EqualNumbersAddUp) {
  // 0.1 a million times: naive float addition is off by 1 %.
  const Tensor x = run_one("Expand", {Tensor::scalar(0.1F), Tensor::from<int64_t>({1000000}, {1})},
                           {DType::f32, {1000000}});
  expect_close(run_one("ReduceSum", {x}, {DType::f32, {}}, {{"keepdims", int64_t{0}}}),
               {1e6 * static_cast<double>(0.1F)}, 1e-6, 0);
}

TEST(Reduce, EmptyTensorsGiveTheNeutralElement) {
  const Tensor x = Tensor::empty(DType::f32, {0, 2});
  const Tensor axis = Tensor::from<int64_t>({0}, {1});
  const Out out{DType::f32, {1, 2}};
  const double inf = std::numeric_limits<double>::infinity();
  expect_close(run_one("ReduceSum", {x, axis}, out), {0, 0});
  expect_close(run_one("ReduceProd", {x, axis}, out), {1, 1});
  expect_close(run_one("ReduceMax", {x, axis}, out), {-inf, -inf});
  expect_close(run_one("ReduceMin", {x, axis}, out), {inf, inf});
  expect_close(run_one("ReduceMean", {x, axis}, out), {NAN, NAN});
  expect_close(run_one("ReduceLogSumExp", {x, axis}, out), {-inf, -inf});
  EXPECT_EQ(run_one("ReduceSum", {x, Tensor::from<int64_t>({1}, {1})}, {DType::f32, {0, 1}}).size(),
            0);
}

TEST(Reduce, IntegersBoolsAndNoop) {
  const Tensor x = Tensor::from<int32_t>({1, -2, 3, -4}, {2, 2});
  expect_close(run_one("ReduceSum", {x}, {DType::i32, {1, 1}}), {-2});
  expect_close(run_one("ReduceMax", {x, Tensor::from<int64_t>({1}, {1})}, {DType::i32, {2, 1}}),
               {1, 3});
  expect_close(run_one("ReduceMean", {x}, {DType::i32, {1, 1}}), {0});
  expect_close(run_one("ReduceL1", {x}, {DType::i32, {1, 1}}), {10});
  const Attrs noop = {{"noop_with_empty_axes", int64_t{1}}};
  expect_close(run_one("ReduceSum", {x}, {DType::i32, {2, 2}}, noop, {.share = {{0, 0}}}),
               {1, -2, 3, -4});
  expect_close(run_one("ReduceSumSquare", {x}, {DType::i32, {2, 2}}, noop), {1, 4, 9, 16});
  EXPECT_THROW(
      run_one("ReduceSum", {x, Tensor::from<int64_t>({INT64_MIN}, {1})}, {DType::i32, {2, 1}}),
      ProviderError);
}

TEST(Reduce, NaNAndInfinity) {
  const Tensor x = Tensor::from<float>({1, NAN, 3, INFINITY, -INFINITY, 0}, {3, 2});
  const Tensor axis = Tensor::from<int64_t>({1}, {1});
  const Out out{DType::f32, {3, 1}};
  expect_close(run_one("ReduceMax", {x, axis}, out), {NAN, INFINITY, 0});
  expect_close(run_one("ReduceSum", {x, axis}, out), {NAN, INFINITY, -INFINITY});
  expect_close(run_one("ReduceLogSumExp", {x, axis}, out), {NAN, INFINITY, 0});
}

TEST(SumTo, UndoesBroadcasting) {
  const Tensor x = random_tensor(DType::f32, {2, 3, 4});
  auto sum_to = [&](const Dims& dims, const std::vector<bool>& reduced) {
    std::vector<double> want;
    for (const auto& g : groups_of(x, reduced))
      want.push_back(sum_of(g, [](double v) { return v; }));
    const Tensor shape = Tensor::from(dims, {static_cast<int64_t>(dims.size())});
    expect_close(run_one("steep.SumTo", {x, shape}, {DType::f32, dims}), want);
  };
  sum_to({3, 1}, {true, false, true});
  sum_to({4}, {true, true, false});
  sum_to({}, {true, true, true});
  sum_to({2, 1, 4}, {false, true, false});
  sum_to({2, 3, 4}, {false, false, false});
}

}  // namespace
}  // namespace steep::test
