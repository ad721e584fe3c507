// The elementwise engine, op by op, against the C library in double precision.
#include <algorithm>
#include <functional>

#include "providers/cpu/philox.h"
#include "steep/error.h"
#include "tests/kernels/run_kernel.h"

namespace steep::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct UnaryRow {
  const char* op;
  std::function<double(double)> f;
  double low, high;  // the domain
  Attrs attrs{};
  double rtol = 2e-6;
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

std::vector<UnaryRow> unary_rows() {
  const double all = 1e30;
  return {
      {"Neg", [](double x) { return -x; }, -all, all},
      {"Abs", [](double x) { return std::abs(x); }, -all, all},
      {"Sqrt", [](double x) { return std::sqrt(x); }, 0, all},
      {"Exp", [](double x) { return std::exp(x); }, -80, 88},
      {"Log", [](double x) { return std::log(x); }, 1e-30, all},
      {"Erf", [](double x) { return std::erf(x); }, -all, all},
      {"Tanh", [](double x) { return std::tanh(x); }, -all, all},
      {"Sigmoid", sigmoid, -80, all},
      {"Relu", [](double x) { return std::max(x, 0.0); }, -all, all},
      {"LeakyRelu", [](double x) { return x < 0 ? 0.3 * x : x; }, -all, all, {{"alpha", 0.3}}},
      {"Elu",
       [](double x) { return x < 0 ? 1.5 * std::expm1(x) : x; },
       -all,
       all,
       {{"alpha", 1.5}}},
      {"Selu",
       [](double x) {
         return 1.05070102214813232 * (x < 0 ? 1.67326319217681885 * std::expm1(x) : x);
       },
       -all, all},
      {"Celu",
       [](double x) { return x < 0 ? 2 * std::expm1(x / 2) : x; },
       -all,
       all,
       {{"alpha", 2.0}}},
      {"Softplus", softplus, -80, all},
      {"Softsign", [](double x) { return x / (1 + std::abs(x)); }, -all, all},
      {"HardSigmoid", [](double x) { return std::clamp(0.2 * x + 0.5, 0.0, 1.0); }, -100, 100},
      {"HardSwish", [](double x) { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); }, -100, 100},
      {"Sign", [](double x) { return (x > 0) - (x < 0); }, -all, all},
      {"Reciprocal", [](double x) { return 1 / x; }, 1e-30, all},
      {"Floor", [](double x) { return std::floor(x); }, -all, all},
      {"Ceil", [](double x) { return std::ceil(x); }, -all, all},
      {"Round", [](double x) { return std::nearbyint(x); }, -all, all},
      {"Sin", [](double x) { return std::sin(x); }, -100, 100},
      {"Cos", [](double x) { return std::cos(x); }, -100, 100},
      {"Tan", [](double x) { return std::tan(x); }, -1.5, 1.5},
      {"Asin", [](double x) { return std::asin(x); }, -1, 1},
      {"Acos", [](double x) { return std::acos(x); }, -1, 0.99},
      {"Atan", [](double x) { return std::atan(x); }, -all, all},
      {"Sinh", [](double x) { return std::sinh(x); }, -80, 80},
      {"Cosh", [](double x) { return std::cosh(x); }, -80, 80},
      {"Asinh", [](double x) { return std::asinh(x); }, -100, 100},
      {"Acosh", [](double x) { return std::acosh(x); }, 1.01, 100},
      {"Atanh", [](double x) { return std::atanh(x); }, -0.99, 0.99},
      {"ThresholdedRelu", [](double x) { return x > 0.7 ? x : 0; }, -all, all, {{"alpha", 0.7}}},
      {"Mish", [](double x) { return x * std::tanh(softplus(x)); }, -80, all},
      {"Gelu", [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }, -12, all},
      {"Gelu",
       [](double x) { return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); },
       -4,
       1e8,
       {{"approximate", "tanh"}},
       4e-6},
  };
}

/// Numbers of all magnitudes in [low, high], with both signs, ends included.
std::vector<double> sweep(double low, double high) {
  std::vector<double> v = {low, high};
  for (double m = 1e-6; m < 1e31; m *= 1.07) {
    for (double x : {m, -m}) {
      if (x >= low && x <= high) v.push_back(x);
    }
  }
  for (int i = 0; i <= 400; ++i) {
    const double x = -10 + 0.05 * i;
    if (x >= low && x <= high) v.push_back(x);
  }
  return v;
}

TEST(Elementwise, UnaryOpsMeetTheirDefinition) {
  for (const UnaryRow& row : unary_rows()) {
    const auto points = sweep(row.low, row.high);
    std::vector<float> x(points.begin(), points.end());
    std::vector<double> want;
    for (float v : x) want.push_back(row.f(v));
    const Dims dims = {static_cast<int64_t>(x.size())};
    SCOPED_TRACE(row.op);
    expect_close(run_one(row.op, {Tensor::from(x, dims)}, {DType::f32, dims}, row.attrs), want,
                 row.rtol, 1e-37);
    std::vector<double> wide(x.begin(), x.end());
    expect_close(run_one(row.op, {Tensor::from(wide, dims)}, {DType::f64, dims}, row.attrs), want,
                 1e-11, 1e-300);
  }
}

TEST(Elementwise, NaNStaysAndInfinitiesGiveLimits) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::from<float>({NAN, inf, -inf, -200, 200}, {5});
  const std::vector<std::pair<const char*, std::vector<double>>> rows = {
      {"Exp", {kNaN, kInf, 0, 0, kInf}},     {"Sigmoid", {kNaN, 1, 0, 0, 1}},
      {"Tanh", {kNaN, 1, -1, -1, 1}},        {"Erf", {kNaN, 1, -1, -1, 1}},
      {"Relu", {kNaN, kInf, 0, 0, 200}},     {"Gelu", {kNaN, kInf, kNaN, 0, 200}},
      {"Softplus", {kNaN, kInf, 0, 0, 200}}, {"Elu", {kNaN, kInf, -1, -1, 200}},
      {"Mish", {kNaN, kInf, kNaN, 0, 200}},  {"Log", {kNaN, kInf, kNaN, kNaN, std::log(200.0)}},
      {"Sign", {kNaN, 1, -1, -1, 1}},        {"Sqrt", {kNaN, kInf, kNaN, kNaN, std::sqrt(200.0)}},
  };
  for (const auto& [op, want] : rows) {
    SCOPED_TRACE(op);
    expect_close(run_one(op, {x}, {DType::f32, {5}}), want, 1e-6, 1e-37);
  }
  expect_close(run_one("Log", {Tensor::from<float>({0, 1e-42F}, {2})}, {DType::f32, {2}}),
               {-kInf, std::log(static_cast<double>(1e-42F))}, 1e-6);
  const Tensor y = Tensor::from<float>({1, NAN, 1, 1, NAN}, {5});
  expect_close(run_one("Max", {x, y}, {DType::f32, {5}}), {kNaN, kNaN, 1, 1, kNaN});
  expect_close(run_one("Min", {x, y}, {DType::f32, {5}}), {kNaN, kNaN, -kInf, -200, kNaN});
  expect_close(run_one("IsNaN", {x}, {DType::boolean, {5}}), {1, 0, 0, 0, 0});
  expect_close(run_one("IsInf", {x}, {DType::boolean, {5}}, {{"detect_negative", int64_t{0}}}),
               {0, 1, 0, 0, 0});
}

TEST(Elementwise, BinaryOpsBroadcastEveryWay) {
  std::vector<std::pair<Dims, Dims>> shapes = {
      {{2, 3, 4}, {2, 3, 4}}, {{2, 3, 4}, {4}},
      {{2, 3, 4}, {3, 1}},    {{2, 3, 4}, {2, 1, 1}},
      {{2, 3, 4}, {2, 1, 4}}, {{2, 1, 4}, {1, 3, 1}},
      {{}, {2, 2}},           {{1}, {}},
      {{37, 1}, {1, 129}},    {{3000}, {1}},
      {{5, 1, 700}, {3, 1}},  {{2, 1, 1, 9}, {2, 3, 9, 9}},
      {{0, 3}, {1, 3}},       {{70, 50, 40}, {40}},
  };
  for (const int64_t width : {2, 4, 5, 8, 16, 24, 32, 63}) {  // short rows, many in a block
    shapes.emplace_back(Dims{7, 300, width}, Dims{7, 300, 1});
    shapes.emplace_back(Dims{7, 11, 30, width}, Dims{7, 1, 30, 1});
    shapes.emplace_back(Dims{7, 11, 30, width}, Dims{1, 11, 1, width});
  }
  for (const auto& [a_dims, b_dims] : shapes) {
    Dims dims(std::max(a_dims.size(), b_dims.size()));
    auto at = [&](const Dims& d, size_t i) {
      const size_t lead = dims.size() - d.size();
      return i < lead ? 1 : d[i - lead];
    };
    for (size_t i = 0; i < dims.size(); ++i)
      dims[i] = at(a_dims, i) == 1 ? at(b_dims, i) : at(a_dims, i);
    const Tensor a = random_tensor(DType::f32, a_dims, 1);
    const Tensor b = random_tensor(DType::f32, b_dims, 2);
    std::vector<double> want;
    for (int64_t i = 0; i < element_count(dims); ++i) {
      auto value = [&](const Tensor& t) {
        int64_t offset = 0, stride = 1, rest = i;
        for (size_t d = dims.size(); d-- > 0;) {
          const int64_t index = rest % dims[d];
          rest /= dims[d];
          if (at(t.dims(), d) != 1) offset += index * stride;
          stride *= at(t.dims(), d);
        }
        return t.data<float>()[offset];
      };
      want.push_back(value(a) - value(b));
    }
    SCOPED_TRACE(to_string(a_dims) + to_string(b_dims));
    expect_close(run_one("Sub", {a, b}, {DType::f32, dims}), want);
  }
}

TEST(Elementwise, OneAndTwoThreadsGiveTheSameBits) {
  const Tensor a = random_tensor(DType::f32, {513, 1025}, 1);
  const Tensor b = random_tensor(DType::f32, {1025}, 2);
  for (const char* op : {"Add", "Div", "Max"}) {
    const Out out{DType::f32, {513, 1025}};
    expect_same_bits(run_one(op, {a, b}, out, {}, {.threads = 1}),
                     run_one(op, {a, b}, out, {}, {.threads = 2}));
  }
  for (const char* op : {"Gelu", "Tanh", "Erf", "Sin"}) {
    const Out out{DType::f32, {513, 1025}};
    expect_same_bits(run_one(op, {a}, out, {}, {.threads = 1}),
                     run_one(op, {a}, out, {}, {.threads = 2}));
  }
}

TEST(Elementwise, SinesKeepZeroAndFarNumbersAreExact) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {-0.0F, 0.0F,     29999.5F,  -3e4F,   1e9F,
                                3e38F, infinity, -infinity, -1e-40F, 2.0F};
  const auto count = static_cast<int64_t>(x.size());
  const Tensor given = Tensor::from(x, {count}),
               sin = run_one("Sin", {given}, {DType::f32, {count}});
  const Tensor cos = run_one("Cos", {given}, {DType::f32, {count}});
  for (size_t i = 0; i < x.size(); ++i) {
    const float s = sin.data<float>()[i], c = cos.data<float>()[i];
    EXPECT_EQ(std::isnan(s), std::isinf(x[i])) << x[i];
    EXPECT_EQ(std::isnan(c), std::isinf(x[i])) << x[i];
    if (std::isinf(x[i])) continue;
    EXPECT_EQ(std::signbit(s), std::signbit(std::sin(x[i]))) << x[i];
    EXPECT_NEAR(s, std::sin(static_cast<double>(x[i])), 2e-7) << x[i];
    EXPECT_NEAR(c, std::cos(static_cast<double>(x[i])), 2e-7) << x[i];
  }
}

TEST(Elementwise, OutputsMayTakeTheirInputsMemory) {
  const Tensor a = random_tensor(DType::f32, {5000}, 1);
  const Tensor b = random_tensor(DType::f32, {5000}, 2);
  const Out out{DType::f32, {5000}};
  const Tensor want = run_one("Sub", {a, b}, out);
  expect_same_bits(run_one("Sub", {a, b}, out, {}, {.share = {{0, 0}}}), want);
  expect_same_bits(run_one("Sub", {a, b}, out, {}, {.share = {{1, 0}}}), want);
}

TEST(Elementwise, IntegersAndTheirFaults) {
  const Tensor a = Tensor::from<int64_t>({7, -7, 7, -7}, {4});
  const Tensor b = Tensor::from<int64_t>({2, 2, -2, -2}, {4});
  const Out out{DType::i64, {4}};
  expect_close(run_one("Div", {a, b}, out), {3, -3, -3, 3});
  expect_close(run_one("Mod", {a, b}, out), {1, 1, -1, -1});
  expect_close(run_one("Mod", {a, b}, out, {{"fmod", int64_t{1}}}), {1, -1, 1, -1});
  expect_close(run_one("Pow", {a, Tensor::scalar(int64_t{3})}, out), {343, -343, 343, -343});
  EXPECT_THROW(run_one("Div", {a, Tensor::scalar(int64_t{0})}, out), DataError);
  EXPECT_THROW(run_one("Mod", {a, Tensor::scalar(int64_t{0})}, out), DataError);
  const Tensor least = Tensor::from<int64_t>({INT64_MIN}, {1});
  const Tensor minus = Tensor::from<int64_t>({-1}, {1});
  EXPECT_THROW(run_one("Div", {least, minus}, {DType::i64, {1}}), DataError);
  expect_close(run_one("Mod", {least, minus}, {DType::i64, {1}}), {0});
  const Tensor least32 = Tensor::from<int32_t>({INT32_MIN}, {1});
  const Tensor minus32 = Tensor::from<int32_t>({-1}, {1});
  EXPECT_THROW(run_one("Div", {least32, minus32}, {DType::i32, {1}}), DataError);
  expect_close(run_one("Add", {least32, minus32}, {DType::i32, {1}}), {INT32_MAX});
  expect_close(run_one("Sub", {Tensor::from<uint8_t>({1}, {1}), Tensor::from<uint8_t>({2}, {1})},
                       {DType::u8, {1}}),
               {255});
  expect_close(run_one("Equal", {a, b}, {DType::boolean, {4}}), {0, 0, 0, 0});
  expect_close(
      run_one("Pow", {Tensor::from<float>({4, 9}, {2}), Tensor::from<int64_t>({2, -1}, {2})},
              {DType::f32, {2}}),
      {16, 1.0 / 9});
}

TEST(Elementwise, FaultsLeaveTheOutputAlone) {
  // The divisor of the last element is 0. The output shares the dividend's buffer, which must stay
  // unchanged.
  std::vector<int64_t> a(5000, 6);
  std::vector<int64_t> b(5000, 2);
  b.back() = 0;
  Tensor dividend = Tensor::from(a, {5000});
  Tensor divisor = Tensor::from(b, {5000});
  const Attrs attrs;
  NodeSpec spec{"node",
                "Div",
                attrs,
                {{DType::i64, {5000}, nullptr}, {DType::i64, {5000}, nullptr}},
                {{DType::i64, {5000}, nullptr}}};
  auto kernel = cpu::make_kernel(spec, "", nullptr).kernel;
  ASSERT_TRUE(kernel);
  const void* in[] = {dividend.data(), divisor.data()};
  void* out[] = {dividend.data()};
  EXPECT_THROW(kernel->execute({in, out, nullptr}), DataError);
  EXPECT_EQ(dividend.to_ints(), a);
}

TEST(Elementwise, BoolsAndChoice) {
  const Tensor p = Tensor::from<uint8_t>({1, 0, 1, 0}, {4});
  Tensor a = Tensor::empty(DType::boolean, {4});
  std::memcpy(a.data(), p.data(), 4);
  Tensor b = Tensor::empty(DType::boolean, {4});
  std::memcpy(b.data(), "\1\1\0\0", 4);
  const Out out{DType::boolean, {4}};
  expect_close(run_one("And", {a, b}, out), {1, 0, 0, 0});
  expect_close(run_one("Or", {a, b}, out), {1, 1, 1, 0});
  expect_close(run_one("Xor", {a, b}, out), {0, 1, 1, 0});
  expect_close(run_one("Not", {a}, out), {0, 1, 0, 1});
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}, {4});
  expect_close(run_one("Where", {a, x, Tensor::scalar(-1.0F)}, {DType::f32, {4}}), {1, -1, 3, -1});
  expect_close(run_one("Where", {a, Tensor::scalar(int64_t{5}), Tensor::scalar(INT64_MIN)},
                       {DType::i64, {4}}),
               {5, -9223372036854775808.0, 5, -9223372036854775808.0});
  expect_close(run_one("LessOrEqual", {x, Tensor::scalar(2.0F)}, out), {1, 1, 0, 0});
}

TEST(Elementwise, VariadicAndClip) {
  const Tensor x = Tensor::from<float>({-3, 0.5, 3}, {3});
  const Tensor one = Tensor::scalar(1.0F);
  const Tensor two = Tensor::from<float>({2, 2, 2}, {3});
  const Out out{DType::f32, {3}};
  expect_close(run_one("Sum", {x, one, two}, out), {0, 3.5, 6});
  expect_close(run_one("Mean", {x, one, two}, out), {0, 3.5 / 3, 2});
  expect_close(run_one("Max", {x}, out), {-3, 0.5, 3});
  expect_close(run_one("Clip", {x, Tensor::scalar(-1.0F), one}, out), {-1, 0.5, 1});
  expect_close(run_one("Clip", {x, {}, one}, out), {-3, 0.5, 1});
  expect_close(run_one("Clip", {x}, out), {-3, 0.5, 3});
  expect_close(run_one("PRelu", {x, Tensor::scalar(0.5F)}, out), {-1.5, 0.5, 3});
  for (double e : {1.0, 2.0, 3.0, -1.0, 2.5}) {
    std::vector<double> want;
    for (double v : {-3.0, 0.5, 3.0}) want.push_back(std::pow(v, e));
    expect_close(
        run_one("Pow", {x, Tensor::scalar(static_cast<float>(e))}, out, {}, {.constants = {1}}),
        want);
  }
}

TEST(Elementwise, SixteenBitFloatsComputeInFloat) {
  Tensor x = Tensor::empty(DType::bf16, {3});
  const uint16_t bits[] = {0x3F80, 0x4000, 0xC040};  // 1, 2, -3
  std::memcpy(x.data(), bits, sizeof bits);
  const Tensor y = run_one("Mul", {x, x}, {DType::bf16, {3}}, {}, {.share = {{0, 0}}});
  expect_close(run_one("Cast", {y}, {DType::f32, {3}}), {1, 4, 9});
}

TEST(Philox, MeetsThePublishedVectors) {
  // Random123's known answers.
  EXPECT_EQ(cpu::philox4x32({0, 0}, {0, 0, 0, 0}),
            (cpu::PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      cpu::philox4x32({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
      (cpu::PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Dropout, KeepsWhatPhiloxSays) {
  const Tensor seed = Tensor::from<int64_t>({0x123456789abcdef, 7}, {2});
  for (int64_t n : {1, 3, 4, 5, 31, 2049, 100001}) {
    for (double ratio : {0.0, 0.1, 0.5, 1.0}) {
      const Attrs attrs = {{"ratio", ratio}, {"stream", int64_t{42}}};
      const Tensor x = random_tensor(DType::f32, {n});
      std::vector<double> want;
      std::vector<double> mask;
      for (int64_t i = 0; i < n; ++i) {
        const auto words =
            cpu::philox_group(seed.data<int64_t>(), 42, static_cast<uint64_t>(i / 4));
        const bool keep = words[static_cast<size_t>(i % 4)] / 4294967296.0 >= ratio;
        mask.push_back(keep);
        want.push_back(keep ? x.data<float>()[i] / (1 - ratio) : 0);
      }
      const Out out{DType::f32, {n}};
      const Tensor y = run_one("steep.Dropout", {x, seed}, out, attrs);
      expect_close(y, want);
      expect_same_bits(y, run_one("steep.Dropout", {x, seed}, out, attrs, {.threads = 1}));
      expect_close(run_one("steep.DropoutMask", {x, seed}, {DType::boolean, {n}}, attrs), mask);
      const Tensor wide = run_one("Cast", {x}, {DType::f64, {n}});
      expect_close(run_one("steep.Dropout", {wide, seed}, {DType::f64, {n}}, attrs), want);
    }
  }
}

}  // namespace
}  // namespace steep::test
