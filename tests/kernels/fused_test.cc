// steep.Fused against its nodes run one by one.
#include <fmt/format.h>

#include "ops/build.h"
#include "steep/error.h"
#include "tests/kernels/run_kernel.h"

namespace steep::test {
namespace {

Type type_of(DType dtype, const Dims& dims) { return {dtype, to_shape(dims)}; }

/// Builds a body; inputs are in the order of the node's inputs.
struct BodyBuilder {
  Graph graph;
  int inputs = 0;

  Value input(DType dtype, const Dims& dims) {
    return graph.add_input(fmt::format("x{}", inputs++), type_of(dtype, dims));
  }
  Attrs attrs(std::initializer_list<Value> outputs) {
    int i = 0;
    for (Value v : outputs) graph.add_output(fmt::format("y{}", i++), v);
    return {{"body", Body(std::make_shared<const Graph>(graph))}};
  }
};

TEST(Fused, ChainWithBroadcastAndConstant) {
  BodyBuilder b;
  Value x = b.input(DType::f32, {37, 65});
  Value bias = b.input(DType::f32, {65});
  const Attrs attrs =
      b.attrs({apply("Gelu", {x + bias}, {{"approximate", std::string("none")}}) * 2.0});
  const Tensor xt = random_tensor(DType::f32, {37, 65}, 1);
  const Tensor bt = random_tensor(DType::f32, {65}, 2);
  const Out out{DType::f32, {37, 65}};
  const Tensor sum = run_one("Add", {xt, bt}, out);
  const Tensor gelu = run_one("Gelu", {sum}, out);
  const Tensor want = run_one("Mul", {gelu, Tensor::scalar(2.0F)}, out);
  expect_same_bits(run_one("steep.Fused", {xt, bt}, out, attrs), want);
  expect_same_bits(run_one("steep.Fused", {xt, bt}, out, attrs, {.threads = 1, .share = {{0, 0}}}),
                   want);
}

TEST(Fused, OutputsNeverDisturbInputsThatAreReadLater) {
  // y0 must not overwrite x or z, because y1 still reads both after y0 is computed.
  BodyBuilder b;
  Value x = b.input(DType::f32, {10000});
  Value z = b.input(DType::f32, {10000});
  Value y0 = x + z;
  Value y1 = y0 * x - z;
  const Attrs attrs = b.attrs({y0, y1});
  const Tensor xt = random_tensor(DType::f32, {10000}, 1);
  const Tensor zt = random_tensor(DType::f32, {10000}, 2);
  const std::vector<Out> outs = {{DType::f32, {10000}}, {DType::f32, {10000}}};
  const auto want = run_kernel("steep.Fused", {xt, zt}, outs, attrs);
  std::vector<double> y0_want, y1_want;
  for (int64_t i = 0; i < xt.size(); ++i) {
    const float xv = xt.data<float>()[i], zv = zt.data<float>()[i];
    y0_want.push_back(xv + zv);
    y1_want.push_back((xv + zv) * xv - zv);
  }
  expect_close(want[0], y0_want);
  expect_close(want[1], y1_want, 1e-5, 1e-5);
  const std::vector<std::vector<std::pair<int, int>>> shares = {
      {{0, 0}}, {{1, 0}}, {{0, 1}}, {{1, 1}}, {{0, 0}, {1, 1}}, {{1, 0}, {0, 1}}};
  for (const auto& share : shares) {
    const auto got = run_kernel("steep.Fused", {xt, zt}, outs, attrs, {.share = share});
    expect_same_bits(got[0], want[0]);
    expect_same_bits(got[1], want[1]);
  }
}

TEST(Fused, InputsAndRepeatedValuesAsOutputs) {
  BodyBuilder b;
  Value x = b.input(DType::f32, {300});
  Value y = apply("Relu", {x});
  const Attrs attrs = b.attrs({y, x, y});
  const Tensor xt = random_tensor(DType::f32, {300});
  const Out out{DType::f32, {300}};
  const auto got = run_kernel("steep.Fused", {xt}, {out, out, out}, attrs, {.share = {{0, 0}}});
  expect_same_bits(got[0], run_one("Relu", {xt}, out));
  expect_same_bits(got[1], xt);
  expect_same_bits(got[2], got[0]);
}

TEST(Fused, BoolsMasksAndDropout) {
  const Dims dims = {6, 7, 129};
  BodyBuilder b;
  Value x = b.input(DType::f32, dims);
  Value mask = b.input(DType::boolean, {6, 1, 129});
  Value seed = b.input(DType::i64, {2});
  Value kept = apply("steep.Dropout", {x, seed}, {{"ratio", 0.3}, {"stream", int64_t{5}}});
  Value positive = greater(kept, scalar(b.graph, 0, DType::f32));
  Value y = where(mask, kept, apply("Exp", {x}));
  const Attrs attrs = b.attrs({y, positive});
  const Tensor xt = random_tensor(DType::f32, dims);
  Tensor mt = Tensor::empty(DType::boolean, {6, 1, 129});
  for (int64_t i = 0; i < mt.size(); ++i) mt.data<uint8_t>()[i] = i % 3 == 0;
  const Tensor st = Tensor::from<int64_t>({11, 3}, {2});
  const Tensor kept_want = run_one("steep.Dropout", {xt, st}, {DType::f32, dims},
                                   {{"ratio", 0.3}, {"stream", int64_t{5}}});
  const Tensor exp_want = run_one("Exp", {xt}, {DType::f32, dims});
  const Tensor want = run_one("Where", {mt, kept_want, exp_want}, {DType::f32, dims});
  const Tensor positive_want =
      run_one("Greater", {kept_want, Tensor::scalar(0.0F)}, {DType::boolean, dims});
  const auto got =
      run_kernel("steep.Fused", {xt, mt, st}, {{DType::f32, dims}, {DType::boolean, dims}}, attrs);
  expect_same_bits(got[0], want);
  expect_same_bits(got[1], positive_want);
}

TEST(Fused, NotANumberIsTrue) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    BodyBuilder b;
    const Attrs attrs = b.attrs({cast(-b.input(dtype, {5}), DType::boolean)});
    const Tensor x = Tensor::from<float>({NAN, 0, -0.0F, 1, INFINITY}, {5});
    const Tensor y = run_one("Cast", {x}, {dtype, {5}});
    expect_close(run_one("steep.Fused", {y}, {DType::boolean, {5}}, attrs), {1, 0, 0, 1, 1});
  }
}

TEST(Fused, CastsRoundAndNarrowIntegersWrap) {
  BodyBuilder b;
  Value x = b.input(DType::f32, {4});
  const Attrs attrs = b.attrs({cast(cast(x, DType::bf16), DType::f32) - x});
  const Tensor xt = Tensor::from<float>({1.00390625F, 2, 1.01171875F, -3.1F}, {4});
  expect_close(run_one("steep.Fused", {xt}, {DType::f32, {4}}, attrs),
               {-0.00390625, 0, 0.00390625, 0.0062499046}, 1e-6, 1e-7);
  BodyBuilder c;
  Value i = c.input(DType::i32, {1});
  const Attrs wrapped = c.attrs({apply("Div", {i + i, scalar(c.graph, 2, DType::i32)})});
  expect_close(
      run_one("steep.Fused", {Tensor::from<int32_t>({INT32_MAX}, {1})}, {DType::i32, {1}}, wrapped),
      {-1});
}

TEST(Fused, DeclinesWhatItCannotHold) {
  BodyBuilder b;
  Value x = b.input(DType::f32, {4});
  const Attrs attrs = b.attrs({apply("Softmax", {x})});
  EXPECT_THROW(run_one("steep.Fused", {random_tensor(DType::f32, {4})}, {DType::f32, {4}}, attrs),
               ProviderError);
  BodyBuilder c;
  Value i = c.input(DType::i64, {1});
  const Attrs faulty = c.attrs({apply("Div", {i, i - i})});
  EXPECT_THROW(run_one("steep.Fused", {Tensor::from<int64_t>({3}, {1})}, {DType::i64, {1}}, faulty),
               DataError);
}

TEST(Fused, LongBodiesReuseRegisters) {
  BodyBuilder b;
  Value x = b.input(DType::f32, {1000});
  Value y = x;
  for (int k = 0; k < 60; ++k) y = apply("Tanh", {y}) + x;
  const Attrs attrs = b.attrs({y});
  const Tensor xt = random_tensor(DType::f32, {1000});
  const Out out{DType::f32, {1000}};
  Tensor want = xt;
  for (int k = 0; k < 60; ++k) want = run_one("Add", {run_one("Tanh", {want}, out), xt}, out);
  expect_same_bits(run_one("steep.Fused", {xt}, out, attrs), want);
}

}  // namespace
}  // namespace steep::test
