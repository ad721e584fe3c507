// Convolutions with one tap, as products, beside plain loops.
#include "kernels/run_kernel.h"

namespace steep::test {
namespace {

struct Case {
  Dims x, w;
  bool bias = false;
};

/// Rows of one place to many; w smaller and larger than what it is multiplied by.
const Case kCases[] = {
    {.x = {3, 5, 9}, .w = {7, 5, 1}},
    {.x = {3, 5, 9}, .w = {7, 5, 1}, .bias = true},
    {.x = {2, 6, 5, 4}, .w = {8, 6, 1, 1}, .bias = true},
    {.x = {4, 40, 3, 3}, .w = {100, 40, 1, 1}, .bias = true},
    {.x = {2, 300, 4, 6}, .w = {260, 300, 1, 1}, .bias = true},  // one product of copies
    {.x = {2, 33, 24, 24}, .w = {65, 33, 1, 1}},
    {.x = {1, 9, 2, 3, 5}, .w = {4, 9, 1, 1, 1}},
};

void compare(const char* op, const std::vector<Tensor>& inputs, const Out& out) {
  const Attrs attrs{{"group", int64_t{1}}};
  const Tensor got = run_one(op, inputs, out, attrs, {.only = "pointwise"});
  const double tolerance = out.dtype == DType::f32 ? 1e-4 : 1e-12;
  expect_close(got, values(run_one(op, inputs, out, attrs, {.only = "loops"})), tolerance,
               tolerance);
  expect_same_bits(got, run_one(op, inputs, out, attrs, {.threads = 1, .only = "pointwise"}));
}

TEST(Conv, OfOneTapIsAProduct) {
  for (const Case& c : kCases) {
    Dims y_dims = c.x;
    y_dims[1] = c.w[0];
    for (const DType dtype : {DType::f32, DType::f64}) {
      SCOPED_TRACE(to_string(c.x) + to_string(c.w) + std::string(name_of(dtype)));
      const Tensor x = random_tensor(dtype, c.x, 1), w = random_tensor(dtype, c.w, 2);
      const Tensor dy = random_tensor(dtype, y_dims, 3);
      std::vector<Tensor> inputs = {x, w};
      if (c.bias) inputs.push_back(random_tensor(dtype, {c.w[0]}, 4));
      compare("Conv", inputs, {dtype, y_dims});
      const auto shape = [](const Dims& dims) {
        return Tensor::from<int64_t>(dims, {static_cast<int64_t>(dims.size())});
      };
      compare("steep.ConvGradInput", {dy, w, shape(c.x)}, {dtype, c.x});
      compare("steep.ConvGradWeight", {dy, x, shape(c.w)}, {dtype, c.w});
    }
  }
}

TEST(Conv, OfOneTapLeavesABiasOfZerosOut) {
  const Dims dims = {2, 5, 6, 6};
  const Tensor x = random_tensor(DType::f32, dims, 1);
  const Tensor w = random_tensor(DType::f32, {5, 5, 1, 1}, 2);
  const Attrs attrs{{"group", int64_t{1}}};
  const Tensor zeros = Tensor::zeros(DType::f32, {5});
  const Tensor without = run_one("Conv", {x, w}, {DType::f32, dims}, attrs);
  expect_same_bits(without, run_one("Conv", {x, w, zeros}, {DType::f32, dims}, attrs,
                                    {.candidate = "pointwise", .constants = {2}}));
  const Tensor bias = Tensor::from<float>({0, 0, 1, 0, 0}, {5});
  std::vector<double> want = values(without);
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t i = 0; i < 36; ++i) want[static_cast<size_t>((n * 5 + 2) * 36 + i)] += 1;
  }
  expect_close(run_one("Conv", {x, w, bias}, {DType::f32, dims}, attrs,
                       {.candidate = "pointwise", .constants = {2}}),
               want);
}

TEST(Conv, OfOneTapLeavesOthersToOthers) {
  const Tensor x = random_tensor(DType::f32, {2, 4, 6}, 1);
  const auto reason = [&](const Dims& w, const Dims& y, const std::string& name, Attr value) {
    Attrs attrs{
        {"group", int64_t{1}}, {"allow_bf16", int64_t{0}}, {"auto_pad", std::string("NOTSET")}};
    attrs.set(name, std::move(value));
    const NodeSpec node{.name = "conv",
                        .op = "Conv",
                        .attrs = attrs,
                        .inputs = {{DType::f32, x.dims()}, {DType::f32, w}},
                        .outputs = {{DType::f32, y}}};
    std::string why_not;
    EXPECT_EQ(cpu::make_kernel(node, "pointwise", &why_not).kernel, nullptr);
    return why_not;
  };
  const auto expect_in = [](const char* part, const std::string& text) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect_in("one tap", reason({3, 4, 1}, {2, 3, 3}, "strides", Ints{2}));
  expect_in("one tap", reason({3, 4, 3}, {2, 3, 4}, "group", int64_t{1}));
  expect_in("one tap", reason({3, 4, 1}, {2, 3, 8}, "pads", Ints{1, 1}));
  expect_in("groups", reason({4, 2, 1}, {2, 4, 6}, "group", int64_t{2}));
  expect_in("bfloat16", reason({3, 4, 1}, {2, 3, 6}, "allow_bf16", int64_t{1}));
}

}  // namespace
}  // namespace steep::test
