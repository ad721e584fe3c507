#include "train/updates.h"

#include <gtest/gtest.h>

#include <limits>

#include "steep/error.h"
#include "train/models.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

using testing::model_bytes;
using testing::random_tensor;
using testing::session_of;

/// y = x·weight + average. After each step `average` moves half of the way to 4, and `count`
/// increases; forward reads the old values.
std::string moving() {
  return model_bytes(R"(g (float[rows, 2] x) => (float[rows, 1] y, float[1] next, int64[1] more)
    <float[2, 1] weight = {0.5, -0.25}, float[1] average = {0}, float[1] two = {2},
     float[1] half = {0.5}, int64[1] count = {5}, int64[1] one = {1}>
    { p = MatMul(x, weight)  y = Add(p, average)
      h = Mul(average, half)  next = Add(h, two)  more = Add(count, one) })");
}

TrainingOptions options() {
  TrainingOptions made{.loss = "mse", .output = "y"};
  made.optimizer = {.kind = "sgd", .lr = 0.1};
  made.updates = {{"average", "next"}, {"count", "more"}};
  return made;
}

const Tensor kX = random_tensor({3, 2}, 1), kLabel = random_tensor({3, 1}, 2);

double average(const TrainingSession& s) { return *s.state("average").data<float>(); }
int64_t count(const TrainingSession& s) { return *s.state("count").data<int64_t>(); }

TEST(Updates, AreWrittenByStepsAlone) {
  TrainingSession session = session_of(moving(), options());
  EXPECT_EQ(session.parameter_names(), std::vector<std::string>{"weight"});
  EXPECT_EQ(session.statistic_names(), (std::vector<std::string>{"average", "count"}));
  const double before = *session.eval({kX, kLabel}).loss;
  EXPECT_EQ(count(session), 5);
  EXPECT_EQ(session.step({kX, kLabel}).loss, before);  // with the old average
  EXPECT_EQ(average(session), 2);
  session.step({kX, kLabel});
  EXPECT_EQ(average(session), 3);
  EXPECT_EQ(count(session), 7);
}

TEST(Updates, WaitForAStepThatIsWhole) {
  TrainingSession session = session_of(moving(), options());
  const Tensor bad = Tensor::from<float>({std::numeric_limits<float>::quiet_NaN(), 0, 0}, {3, 1});
  EXPECT_THROW(session.step({kX, bad}), DataError);
  EXPECT_EQ(average(session), 0);
  EXPECT_EQ(count(session), 5);
}

using UpdatesOnDisk = testing::TempFolder;

TEST_F(UpdatesOnDisk, AreInCheckpoints) {
  TrainingSession session = session_of(moving(), options());
  session.step({kX, kLabel});
  session.save_checkpoint(folder() / "c");
  TrainingSession again = session_of(moving(), options());
  again.load_checkpoint(folder() / "c");
  EXPECT_EQ(average(again), 2);
  EXPECT_EQ(count(again), 6);
  again.set_weights({{"average", Tensor::from<float>({9}, {1})}});
  EXPECT_EQ(average(again), 9);
}

TEST(Updates, AreRefusedWhereTheyCannotBe) {
  auto refused = [](auto change) {
    TrainingOptions o = options();
    change(o);
    EXPECT_THROW(session_of(moving(), o), ModelError);
  };
  refused([](auto& o) { o.updates = {{"averag", "next"}}; });
  refused([](auto& o) { o.updates = {{"average", "nxt"}}; });
  refused([](auto& o) { o.updates = {{"average", "more"}}; });
  refused([](auto& o) { o.updates = {{"weight", "next"}}; });
  refused([](auto& o) { o.trainable = {"average", "weight"}; });
}

TEST(Updates, OfANormalisationReplaceItsOwn) {
  const std::string bytes = model_bytes(
      R"(g (float[rows, 2, 3] x) => (float[rows, 2, 3] y, float[2] mean, float[2] far)
    <float[2] scale = {1, 1}, float[2] shift = {0, 0}, float[2] running = {7, 7},
     float[2] var = {1, 1}, float[2] hundred = {100, 100}>
    { y, mean, variance = BatchNormalization <training_mode = 1, momentum = 0.5> (x, scale, shift,
      running, var)  far = Add(mean, hundred) })");
  TrainingOptions o{.loss = "mse", .output = "y"};
  const Tensor x = Tensor::zeros(DType::f32, {4, 2, 3}), label = random_tensor({4, 2, 3}, 3);
  TrainingSession plain = session_of(bytes, o);
  plain.step({x, label});
  EXPECT_EQ(*plain.state("running").data<float>(), 3.5);
  o.updates = {{"running", "far"}};
  TrainingSession session = session_of(bytes, o);
  session.step({x, label});
  EXPECT_EQ(*session.state("running").data<float>(), 103.5);
}

}  // namespace
}  // namespace steep
