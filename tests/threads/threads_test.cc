// Many threads with one object, and with many objects. `make sanitize-thread` runs these under
// ThreadSanitizer.
#include "runtime/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "autodiff/gradient.h"
#include "model/onnx_text.h"
#include "ops/build.h"
#include "program/program.h"
#include "providers/mirror.h"
#include "steep/check.h"
#include "steep/gradient.h"
#include "steep/inference.h"

namespace steep {
namespace {

using testing::as_span;

constexpr int kThreads = 4;

/// Runs body(t, i) `runs` times in each of kThreads threads at once; an exception fails the test.
void at_once(const std::function<void(int, int)>& body, int runs = 8) {
  std::vector<std::thread> threads;
  std::barrier start(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      try {
        for (int i = 0; i < runs; ++i) body(t, i);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

std::string bytes_of(const char* text) { return testing::to_bytes(testing::parse_text(text)); }

std::string layers() {
  return bytes_of(R"(<ir_version: 8, opset_import: ["" : 18]>
    layers (float[rows, 3] x) => (float[rows, 2] y)
    <float[3, 4] v = {0.1, -0.2, 0.3, 0.4, 0.5, 0.6, -0.7, 0.8, 0.9, 0.1, 0.2, -0.3},
     float[4, 2] w = {0.3, 0.1, -0.4, 0.1, 0.5, -0.9, 0.2, 0.6}> {
      a = MatMul(x, v)
      b = Tanh(a)
      y = MatMul(b, w)
    })");
}

Tensor rows(int64_t count, float value) {
  Tensor x = Tensor::zeros(DType::f32, {count, 3});
  for (int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = value + 0.1F * static_cast<float>(i);
  return x;
}

std::vector<float> values(const Tensor& t) { return {t.data<float>(), t.data<float>() + t.size()}; }

std::vector<float> run(InferenceSession& session, int64_t count) {
  return values(session.run({{"x", rows(count, 0.5F)}}).at(0));
}

TEST(Threads, RunOneInferenceSession) {
  InferenceSession session(as_span(layers()));
  std::vector<std::vector<float>> expected;
  for (int64_t n = 1; n <= 3; ++n) expected.push_back(run(session, n));
  InferenceSession fresh(as_span(layers()));
  fresh.start_profile();
  at_once([&](int t, int i) {
    const int n = (t + i) % 3;
    EXPECT_EQ(run(fresh, n + 1), expected[static_cast<size_t>(n)]);
  });
}

TEST(Threads, RunSegmentsAndBodies) {
  InferenceSession session(as_span(bytes_of(R"(<ir_version: 8, opset_import: ["" : 18]>
    picked (float[n] x) => (float[m] y) {
      places = NonZero(x)
      by_row = Transpose<perm = [1, 0]>(places)
      picked = GatherND(x, by_row)
      y = Exp(picked)
    })")));
  at_once([&](int t, int) {
    Tensor x = Tensor::zeros(DType::f32, {5});
    for (int k = 0; k <= t; ++k) x.data<float>()[k] = 1;
    const Tensor y = session.run({{"x", x}}).at(0);
    EXPECT_EQ(values(y), std::vector<float>(static_cast<size_t>(t) + 1, std::exp(1.0F)));
  });
}

class OneTrainingSession : public ::testing::Test {
 protected:
  OneTrainingSession() {
    labels.data<int64_t>()[1] = 1;
    std::filesystem::create_directories(folder);
  }
  ~OneTrainingSession() override { std::filesystem::remove_all(folder); }

  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("steep_threads_" + std::to_string(::getpid()));
  TrainingSession session{
      as_span(layers()),
      {.loss = "softmax_cross_entropy", .trainable = {"v", "w"}, .optimizer = {.lr = 0.01}}};
  Tensor labels = Tensor::zeros(DType::i64, {4});
  const Tensor x = rows(4, 0.25F);
};

TEST_F(OneTrainingSession, GivesEachThreadItsResult) {
  const EvalResult expected = session.eval({x, labels});
  double loss = 0;
  const auto gradients = session.gradients(std::vector<Tensor>{x, labels}, &loss);
  at_once([&](int t, int i) {
    if ((t + i) % 2 == 0) {
      const EvalResult result = session.eval({x, labels});
      EXPECT_EQ(result.loss, expected.loss);
      EXPECT_EQ(values(result.outputs[0]), values(expected.outputs[0]));
    } else {
      double found = 0;
      const auto again = session.gradients(std::vector<Tensor>{x, labels}, &found);
      EXPECT_EQ(found, loss);
      EXPECT_EQ(values(again.at("w")), values(gradients.at("w")));
    }
  });
}

TEST_F(OneTrainingSession, TakesEveryStepOnce) {
  std::atomic<int> steps = 0;
  at_once([&](int t, int i) {
    switch ((t + i) % kThreads) {
      case 0:
        session.step({rows(2 + t, 0.25F), Tensor::zeros(DType::i64, {2 + t})}), ++steps;
        break;
      case 1: session.save_checkpoint(folder / std::to_string(t)); break;
      case 2: EXPECT_FALSE(session.dump(std::vector<Tensor>{x, labels}).empty()); break;
      default: session.set_weights(session.weights());
    }
    session.set_lr(session.lr());
    session.set_seed(static_cast<uint64_t>(i));
    EXPECT_GT(session.plan(std::vector<Tensor>{x, labels}).peak_bytes, 0U);
    EXPECT_GE(session.peak_bytes(), 0U);
    if (t == 0) session.start_profile();
    EXPECT_FALSE(session.export_onnx_bytes().empty());
    EXPECT_GE(session.run_count(), 0U);
  });
  EXPECT_EQ(session.step_count(), steps);
  EXPECT_NO_THROW(session.load_checkpoint(folder / "0"));
}

TEST_F(OneTrainingSession, ShowsStatesWhileOthersAreAdded) {
  at_once([&](int t, int) {
    if (t == 0) session.accumulate({x, labels});  // adds the states of the sums
    EXPECT_EQ(session.state("w").dims(), (Dims{4, 2}));
  });
}

TEST(Threads, HaveSessionsOfTheirOwn) {
  InferenceSession first(as_span(layers()));
  const std::vector<float> expected = run(first, 2);
  at_once([&](int t, int i) {
    if (i > 1) return;
    InferenceSession session(as_span(layers()), {.threads = 1 + t % 2});
    EXPECT_EQ(run(session, 2), expected);
    TrainingSession trained(as_span(layers()), {.loss = "mse", .trainable = {"w"}});
    trained.step({rows(2, 0.5F), Tensor::zeros(DType::f32, {2, 2})});
    EXPECT_EQ(trained.step_count(), 1);
    EXPECT_FALSE(gradient_model(as_span(layers()), {.wrt = {"w"}, .outputs = {"y"}}).empty());
    EXPECT_TRUE(check_model(as_span(layers()), {.loss = "mse"}).obstacles.empty());
  });
}

/// y = tanh(x), and dx from dy.
Program differentiated() {
  Graph g;
  const Value x = g.add_input("x", {DType::f32, Shape{Dim::symbol("n")}});
  const Value y = apply("Tanh", {x});
  g.add_output("y", y);
  const Value dy = g.add_gradient_input("dy", y);
  const auto dx = add_gradients(g, std::span(&y, 1), std::span(&dy, 1), std::span(&x, 1));
  g.add_output("dx", dx[0], Phase::backward);
  return Program(std::move(g));
}

TEST(Threads, DropAndCollectRunsOfAProgram) {
  Program program = differentiated();
  CallLock call_lock;
  const Tensor x = Tensor::from({0.1F, 0.2F}, {2}), one = Tensor::from({1.0F, 1.0F}, {2});
  const float y = std::tanh(0.2F);
  at_once(
      [&](int t, int i) {
        ForwardResult forward;
        {
          const std::lock_guard lock(call_lock);
          forward = program.forward(std::span(&x, 1));
        }
        if ((t + i) % 2 == 0) {
          forward.pending.reset();  // while other threads run
          return;
        }
        std::thread([&, pending = std::move(forward.pending)]() mutable {
          const std::lock_guard lock(call_lock);
          const Tensor dx = program.backward(std::move(pending), std::span(&one, 1)).at(0);
          EXPECT_NEAR(dx.data<float>()[1], 1 - y * y, 1e-6);
        }).join();
      },
      100);
}

TEST(Program, RefusesTheRunOfAnother) {
  Program one = differentiated(), other = differentiated();
  const Tensor x = Tensor::from({0.1F, 0.2F}, {2});
  ForwardResult forward = one.forward(std::span(&x, 1));
  EXPECT_THROW(other.backward(std::move(forward.pending), std::span(&x, 1)), DataError);
}

TEST(CallLock, IsRefusedToItsHolder) {
  CallLock call_lock;
  const std::lock_guard lock(call_lock);
  EXPECT_THROW(call_lock.lock(), ProviderError);
}

// A device with its own threads: one session for all test threads, and one session for each.
TEST(Threads, RunOnAnotherDevice) {
  const std::string model = layers();
  const InferenceOptions there{.providers = testing::on_mirror()};
  InferenceSession shared(as_span(model), there), here(as_span(model));
  const Tensor x = Tensor::from<float>({1, 2, 3, -1, 0.5, 2}, {2, 3});
  const Tensor wanted = here.run({{"x", x}})[0];
  const auto same = [&](const Tensor& y) {
    for (int64_t i = 0; i < y.size(); ++i)
      if (std::abs(y.data<float>()[i] - wanted.data<float>()[i]) > 1e-5F) return false;
    return true;
  };
  at_once([&](int, int i) {
    EXPECT_TRUE(same(shared.run({{"x", x}})[0]));
    if (i % 4 != 0) return;
    EXPECT_TRUE(same(InferenceSession(as_span(model), there).run({{"x", x}})[0]));
  });
}

// Steps read and write weights on a device with an asynchronous stream, while other threads
// evaluate.
TEST(Threads, TrainOnAnotherDevice) {
  const TrainingOptions options{.loss = "softmax_cross_entropy",
                                .trainable = {"v", "w"},
                                .optimizer = {.kind = "adamw", .lr = 0.01}};
  TrainingOptions there = options;
  there.providers = testing::on_mirror();
  TrainingSession shared(as_span(layers()), there), here(as_span(layers()), options);
  const Tensor x = rows(4, 0.25F), labels = Tensor::zeros(DType::i64, {4});
  constexpr int kSteps = 4;
  at_once(
      [&](int t, int) {
        if (t == 0) shared.step({x, labels});
        if (t != 0) shared.eval({x, labels});
      },
      kSteps);
  for (int i = 0; i < kSteps; ++i) here.step({x, labels});
  EXPECT_NEAR(shared.eval({x, labels}).loss.value(), here.eval({x, labels}).loss.value(), 1e-5);
}

}  // namespace
}  // namespace steep
