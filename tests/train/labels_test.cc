#include "train/labels.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/convert.h"
#include "steep/error.h"
#include "train/models.h"

namespace steep {
namespace {

using testing::mlp_bytes;
using testing::random_labels;
using testing::random_tensor;
using testing::session_of;

LabelForm classes(std::optional<int64_t> ignored = {}) {
  return {.input = {.name = "label", .dtype = DType::i64, .dims = {-1}, .symbols = {"n"}},
          .classes = true,
          .count = 3,
          .ignored = ignored};
}

LabelForm numbers(Dims dims) {
  return {.input = {.name = "label", .dtype = DType::f32, .dims = std::move(dims)}};
}

TEST(Labels, OfClassesMayBeWholeFloatsColumnsAndOneHot) {
  const std::vector<int64_t> expected{1, 0, 2};
  const std::vector<float> rows{0, 1, 0, 1, 0, 0, 0, 0, 1};
  for (const Tensor& labels : {
           Tensor::from<int64_t>({1, 0, 2}, {3}),
           Tensor::from<int32_t>({1, 0, 2}, {3}),
           Tensor::from<int64_t>({1, 0, 2}, {3, 1}),
           Tensor::from<double>({1, 0, 2}, {3}),
           convert(Tensor::from<float>({1, 0, 2}, {3, 1}), DType::f16, ""),
           Tensor::from<float>(rows, {3, 3}),
           convert(Tensor::from<float>(rows, {3, 3}), DType::bf16, ""),
           Tensor::from<int64_t>({0, 1, 0, 1, 0, 0, 0, 0, 1}, {3, 3}),
       }) {
    const Tensor made = as_labels(labels, classes());
    EXPECT_EQ(made.dtype(), DType::i64);
    EXPECT_EQ(made.dims(), Dims{3});
    EXPECT_EQ(made.to_ints(), expected);
  }
}

TEST(Labels, OfNoClassAreRefused) {
  EXPECT_THROW(as_labels(Tensor::from<float>({1, 0.5f}, {2}), classes()), DataError);
  EXPECT_THROW(as_labels(Tensor::from<float>({1, NAN}, {2}), classes()), DataError);
  EXPECT_THROW(as_labels(Tensor::from<float>({0, 0, 0}, {1, 3}), classes()), DataError);
  EXPECT_THROW(as_labels(Tensor::from<float>({1, 0, 1}, {1, 3}), classes()), DataError);
  EXPECT_THROW(as_labels(Tensor::from<double>({0.2, 0.3, 0.5}, {1, 3}), classes()), DataError);
  // Without an axis of classes: the loss refuses the shape.
  EXPECT_EQ(as_labels(Tensor::from<int64_t>({1, 0}, {1, 2}), classes()).dims(), (Dims{1, 2}));

  const Tensor bad = Tensor::from<int64_t>({1, 3}, {2});
  EXPECT_THROW(check_classes(bad, classes(), "y"), DataError);
  EXPECT_NO_THROW(check_classes(bad, classes(3), "y"));
  EXPECT_EQ(count_labels(bad, classes(3)), 1);
  EXPECT_EQ(count_labels(bad, classes()), 2);
  EXPECT_THROW(check_classes(Tensor::from<int64_t>({-1, -1}, {2}), classes(-1), "y"), DataError);
}

TEST(Labels, OfNumbersMayHaveAnAxisOfOneMoreOrLess) {
  const Tensor flat = Tensor::from<float>({1, 2}, {2}),
               column = Tensor::from<float>({1, 2}, {2, 1});
  EXPECT_EQ(as_labels(flat, numbers({-1, 1})).dims(), (Dims{2, 1}));
  EXPECT_EQ(as_labels(column, numbers({-1})).dims(), Dims{2});
  EXPECT_EQ(as_labels(column, numbers({-1, 1})).data(), column.data());
  EXPECT_EQ(as_labels(flat, numbers({-1, 2})).dims(), Dims{2});  // the loss checks it
  EXPECT_EQ(as_labels(Tensor::from<int64_t>({1, 2}, {2}), numbers({-1, 1})).dtype(), DType::f32);
  for (auto form : {numbers({-1, 1}), numbers({-1})}) {
    form.broadcasts = true;
    const Tensor& other = form.input.dims.size() == 2 ? flat : column;
    EXPECT_THROW(as_labels(other, form), ShapeError);
    EXPECT_NO_THROW(as_labels(form.input.dims.size() == 2 ? column : flat, form));
  }
}

TEST(Labels, OfASessionAreConvertedAsItsArraysAre) {
  auto session = session_of(mlp_bytes(false), {.loss = "softmax_cross_entropy"});
  const Tensor x = convert(random_tensor({6, 3}, 1), DType::f16, "");
  const Tensor labels = random_labels(6, 4, 2);
  Tensor one_hot = Tensor::zeros(DType::f32, {6, 4});
  for (int64_t i = 0; i < 6; ++i) one_hot.data<float>()[i * 4 + labels.to_ints()[i]] = 1;
  double right = 0, loss = 0;
  session.gradients({{"x", convert(x, DType::f32, "")}, {"label", labels}}, &right);
  session.gradients({{"label", one_hot}, {"x", convert(x, DType::f64, "")}}, &loss);
  EXPECT_EQ(loss, right);
  EXPECT_EQ(session.eval({x, convert(labels, DType::i8, "")}).loss, right);
  EXPECT_EQ(session.plan(std::vector{x, one_hot}).kernels,
            session.plan(std::vector{x, labels}).kernels);
  EXPECT_EQ(session.step({x, one_hot}).loss, right);
  EXPECT_THROW(session.step({convert(labels, DType::f64, ""), one_hot}), ShapeError);
}

TEST(Labels, ThatCountWeighTheLossOfTheirBatch) {
  auto session = session_of(mlp_bytes(false), {.loss = "softmax_cross_entropy", .ignore_index = 3});
  const Tensor x = random_tensor({8, 3}, 1);
  const Tensor labels = Tensor::from<int64_t>({3, 3, 0, 3, 1, 2, 3, 2}, {8});
  const EvalResult all = session.eval({x, labels});
  EXPECT_EQ(all.weight, 4);
  double sum = 0, weight = 0;
  for (int64_t i = 0; i < 8; i += 2) {
    const EvalResult part = session.eval({rows(x, i, i + 2), rows(labels, i, i + 2)});
    EXPECT_EQ(std::isnan(*part.loss), part.weight == 0);
    if (part.weight != 0) sum += *part.loss * *part.weight, weight += *part.weight;
  }
  EXPECT_NEAR(sum / weight, *all.loss, 1e-6);
  EXPECT_FALSE(session.eval({x}).weight);
  EXPECT_FALSE(session_of(mlp_bytes(false), {.loss = "softmax_cross_entropy"})
                   .eval({x, random_labels(8, 4, 2)})
                   .weight);
}

TEST(Session, MayBeToldItsScheduleLater) {
  auto session = session_of(mlp_bytes(false), {.loss = "softmax_cross_entropy"});
  const double lr = session.lr();
  session.set_schedule({.kind = "linear", .total_steps = 4});
  session.set_step_count(1);
  EXPECT_DOUBLE_EQ(session.lr(), lr * 0.75);
  EXPECT_THROW(session.set_schedule({.kind = "linear"}), ModelError);
  EXPECT_DOUBLE_EQ(session.lr(), lr * 0.75);
}

TEST(Convert, RoundsFloatsOnceAndRefusesWhatDoesNotFit) {
  // Close to the midpoint of two float16 numbers: rounded to float32 first, it would be a tie and
  // round down.
  const Tensor above = Tensor::from<double>({1 + 0x1p-11 + 0x1p-40, 0x1p-25, 65519.99, -0.0}, {4});
  const Tensor half = convert(above, DType::f16, "x");
  const auto* bits = static_cast<const uint16_t*>(half.data());
  EXPECT_EQ(std::vector<uint16_t>(bits, bits + 4),
            (std::vector<uint16_t>{0x3c01, 0x0000, 0x7bff, 0x8000}));
  const Tensor back = convert(half, DType::f64, "x");
  EXPECT_EQ(back.data<double>()[0], 1 + 0x1p-10);
  EXPECT_EQ(back.data<double>()[2], 65504);
  EXPECT_THROW(convert(Tensor::from<float>({65520}, {1}), DType::f16, "x"), DataError);
  EXPECT_THROW(convert(Tensor::from<int64_t>({70000}, {1}), DType::f16, "x"), DataError);
  EXPECT_THROW(convert(Tensor::from<double>({1e39}, {1}), DType::f32, "x"), DataError);
  const Tensor infinite = Tensor::from<double>({INFINITY, NAN}, {2});
  EXPECT_TRUE(std::isinf(convert(infinite, DType::f32, "x").data<float>()[0]));
  const Tensor brain = convert(infinite, DType::bf16, "x");
  EXPECT_TRUE(std::isnan(convert(brain, DType::f32, "x").data<float>()[1]));
}

}  // namespace
}  // namespace steep
