#include <gtest/gtest.h>
#include <omp.h>

#include <limits>

#include "checkpoint/checkpoint.h"
#include "steep/check.h"
#include "steep/error.h"
#include "train/models.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

using testing::linear_bytes;
using testing::mlp_bytes;
using testing::model_bytes;
using testing::random_labels;
using testing::random_tensor;
using testing::same_tensors;
using testing::session_of;

TrainingOptions classifier(const std::string& optimizer = "adamw") {
  return {.loss = "softmax_cross_entropy",
          .optimizer = {.kind = optimizer, .lr = 0.01, .weight_decay = 0.01},
          .schedule = {.kind = "cosine", .warmup_steps = 2, .total_steps = 20},
          .clip_norm = 0.5,
          .seed = 7};
}

std::vector<Tensor> batch(unsigned seed, int64_t rows = 6) {
  return {random_tensor({rows, 3}, seed), random_labels(rows, 4, seed + 1)};
}

template <typename E, typename F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Session, DescribesItself) {
  auto session = session_of(mlp_bytes(false), classifier());
  ASSERT_EQ(session.input_info().size(), 2u);
  EXPECT_EQ(session.input_info()[0].name, "x");
  EXPECT_EQ(session.input_info()[0].text(), "float32[rows, 3]");
  EXPECT_EQ(session.input_info()[1].name, "label");
  EXPECT_EQ(session.input_info()[1].text(), "int64[rows]");
  EXPECT_EQ(session.output_info().at(0).name, "logits");
  EXPECT_EQ(session.parameter_names(), (std::vector<std::string>{"w0", "b0", "w1", "b1"}));
  EXPECT_EQ(session.optimizer_state_names().size(), 8u);
  const auto inputs = batch(1);
  const StepPlan plan = session.plan(inputs);
  EXPECT_GT(plan.kernels, 5u);
  EXPECT_EQ(plan.parameter_bytes, (15 + 5 + 20 + 4) * 4u);
  EXPECT_EQ(plan.optimizer_bytes, 2 * plan.parameter_bytes);
  EXPECT_TRUE(contains(session.dump(), "steep.Adam"));
  EXPECT_TRUE(contains(session.dump(inputs), "steep.Adam"));
}

TEST(Session, LearnsAndEvaluatesAtOtherBatchSizes) {
  TrainingOptions options = classifier();
  options.schedule = {};
  options.optimizer.lr = 0.05;
  options.step_outputs = {"logits"};
  auto session = session_of(mlp_bytes(false), options);
  const auto inputs = batch(1, 8);
  const double first = session.step(inputs).loss;
  StepResult last;
  for (int i = 0; i < 200; ++i) last = session.step(inputs);
  EXPECT_LT(last.loss, first / 4);
  EXPECT_EQ(last.outputs.at(0).dims(), (Dims{8, 4}));
  EXPECT_GT(last.grad_norm, 0);
  const EvalResult two = session.eval({rows(inputs[0], 0, 2)});
  EXPECT_FALSE(two.loss.has_value());
  EXPECT_EQ(two.outputs.at(0).dims(), (Dims{2, 4}));
  EXPECT_TRUE(session.eval({rows(inputs[0], 0, 2), rows(inputs[1], 0, 2)}).loss.has_value());
}

TEST(Session, TakesInputsByName) {
  auto by_name = session_of(mlp_bytes(false), classifier());
  auto in_order = session_of(mlp_bytes(false), classifier());
  const auto b = batch(3);
  EXPECT_EQ(by_name.step({{"label", b[1]}, {"x", b[0]}}).loss, in_order.step(b).loss);
  const auto missing = message_of<DataError>([&] { by_name.step({{"x", b[0]}}); });
  EXPECT_TRUE(contains(missing, "label")) << missing;
  const auto extra = message_of<DataError>([&] {
    by_name.step({{"x", b[0]}, {"lable", b[1]}, {"label", b[1]}});
  });
  EXPECT_TRUE(contains(extra, "lable")) << extra;
  EXPECT_NO_THROW(by_name.eval({{"x", b[0]}}));
}

TEST(Session, PartsAreAStepOfTheirBatch) {
  TrainingOptions options{.loss = "mse", .optimizer = {.kind = "sgd", .lr = 0.1}};
  auto whole = session_of(linear_bytes(), options);
  auto parts = session_of(linear_bytes(), options);
  const Dims dims = whole.input_info()[0].dims;
  const Tensor x = random_tensor({4, dims.at(1)}, 1), y = random_tensor({4, 1}, 2);
  const StepResult step = whole.step({x, y});
  for (int64_t i = 0; i < 4; ++i) {
    const auto row = [i](const Tensor& t) {
      const int64_t width = t.dims()[1];
      return Tensor::from(
          std::vector<float>(t.data<float>() + i * width, t.data<float>() + (i + 1) * width),
          {1, width});
    };
    parts.accumulate({row(x), row(y)});
  }
  EXPECT_EQ(parts.accumulated(), 4);
  EXPECT_THROW(parts.step({x, y}), DataError);
  EXPECT_NEAR(parts.apply_gradients().loss, step.loss, 1e-6);
  EXPECT_THROW(parts.apply_gradients(), DataError);
  for (const auto& [name, weight] : whole.weights()) {
    const Tensor other = parts.weights().at(name);
    for (int64_t i = 0; i < weight.size(); ++i) {
      EXPECT_NEAR(other.data<float>()[i], weight.data<float>()[i], 1e-6) << name;
    }
  }
}

TEST(Session, BadInputsLeaveEverythingAsItWas) {
  auto session = session_of(mlp_bytes(false), classifier());
  const auto good = batch(1);
  session.step(good);
  const auto weights = session.weights(), moments = session.optimizer_state();
  const Tensor x = good[0], labels = good[1];
  EXPECT_THROW(session.step({x}), Error);
  EXPECT_THROW(session.step({x, labels, x}), Error);
  EXPECT_THROW(session.step({x, Tensor()}), Error);
  EXPECT_THROW(session.step({labels, labels}), ShapeError);
  EXPECT_THROW(session.step({random_tensor({6, 4}, 1), labels}), ShapeError);
  EXPECT_THROW(session.step({random_tensor({6}, 1), labels}), ShapeError);
  EXPECT_THROW(session.step({x, rows(labels, 0, 5)}), ShapeError);
  for (int64_t bad : {int64_t{4}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    Tensor wrong = labels.clone();
    wrong.data<int64_t>()[3] = bad;
    const auto text = message_of<DataError>([&] { session.step({x, wrong}); });
    EXPECT_TRUE(contains(text, std::to_string(bad))) << text;
  }
  EXPECT_TRUE(same_tensors(session.weights(), weights));
  EXPECT_TRUE(same_tensors(session.optimizer_state(), moments));
  EXPECT_EQ(session.step_count(), 1);
  // The failed steps have left no trace.
  auto other = session_of(mlp_bytes(false), classifier());
  other.step(good);
  EXPECT_EQ(session.step(good).loss, other.step(good).loss);
}

TEST(Session, NanNamesItsNodeAndChangesNothing) {
  const std::string bytes = model_bytes(R"(g (float[n] x) => (float[n] y) <float[1] w = {1.0}>
      { a = Mul(x, w)  [bad] b = Log(a)  y = Mul(b, w) })");
  for (bool check : {false, true}) {
    auto session =
        session_of(bytes, {.loss = "mse", .optimizer = {.kind = "adam"}, .check_finite = check});
    const Tensor t = Tensor::zeros(DType::f32, {2});
    session.step({Tensor::from<float>({1, 2}, {2}), t});
    const auto weights = session.weights(), moments = session.optimizer_state();
    const uint64_t runs = session.run_count();
    const auto text = message_of<DataError>([&] {
      session.step({Tensor::from<float>({1, -2}, {2}), t});
    });
    EXPECT_TRUE(contains(text, "Log") && contains(text, "bad")) << text;
    EXPECT_TRUE(same_tensors(session.weights(), weights));
    EXPECT_TRUE(same_tensors(session.optimizer_state(), moments));
    EXPECT_EQ(session.run_count(), runs);
    EXPECT_EQ(session.step_count(), 1);
    EXPECT_NO_THROW(session.step({Tensor::from<float>({1, 2}, {2}), t}));
  }
}

TEST(Session, GradientsThatOverflowAreSeenOnRequest) {
  // d sqrt(x)/dx is infinite at 0, although the loss is finite.
  const std::string bytes = model_bytes(R"(g (float[n] x) => (float[n] y) <float[1] w = {1.0}>
      { a = Mul(x, w)  [root] y = Sqrt(a) })");
  const Tensor zero = Tensor::zeros(DType::f32, {1}), one = Tensor::from<float>({1}, {1});
  auto session = session_of(bytes, {.loss = "mse", .check_finite = true});
  const auto weights = session.weights();
  const auto text = message_of<DataError>([&] { session.step({zero, one}); });
  EXPECT_TRUE(contains(text, "root")) << text;
  EXPECT_TRUE(same_tensors(session.weights(), weights));
}

TEST(Session, NanInTheDataIsNamed) {
  auto session = session_of(linear_bytes(), {.loss = "mse"});
  const Tensor nan = Tensor::from<float>({1, NAN}, {1, 2});
  const auto text = message_of<DataError>([&] {
    session.step({nan, Tensor::zeros(DType::f32, {1, 1})});
  });
  EXPECT_TRUE(contains(text, "name:     x\n")) << text;
}

TEST(Session, CheckedStepsAreTheSameSteps) {
  TrainingOptions checked = classifier();
  checked.check_finite = true;
  auto a = session_of(mlp_bytes(true), classifier()), b = session_of(mlp_bytes(true), checked);
  for (unsigned i = 0; i < 5; ++i) {
    const StepResult ra = a.step(batch(i)), rb = b.step(batch(i));
    EXPECT_EQ(ra.loss, rb.loss);
    EXPECT_EQ(ra.grad_norm, rb.grad_norm);
  }
  EXPECT_TRUE(same_tensors(a.weights(), b.weights()));
}

TEST(Session, ChoosesParameters) {
  TrainingOptions options = classifier();
  options.frozen = {"w0", "b0"};
  auto session = session_of(mlp_bytes(false), options);
  EXPECT_EQ(session.parameter_names(), (std::vector<std::string>{"w1", "b1"}));

  options = classifier();
  options.trainable = {"w1"};
  EXPECT_EQ(session_of(mlp_bytes(false), options).parameter_names(),
            (std::vector<std::string>{"w1"}));

  options.trainable = {"w_1"};
  const auto text = message_of<ModelError>([&] { session_of(mlp_bytes(false), options); });
  EXPECT_TRUE(contains(text, "w_1") && contains(text, "w1")) << text;

  options = classifier();
  options.frozen = {"w0", "b0", "w1", "b1"};
  EXPECT_THROW(session_of(mlp_bytes(false), options), ModelError);
}

TEST(Session, NeedsAParameterOnTheWayToTheLoss) {
  const std::string bytes = model_bytes(
      "g (float[n] x) => (float[n] y, float[n] z) <float[1] w = {1.0}> { y = Neg(x) z = Mul(x, w) "
      "}");
  TrainingOptions options{.loss = "mse", .output = "y"};
  EXPECT_THROW(session_of(bytes, options), ModelError);
  options.output = "z";
  EXPECT_NO_THROW(session_of(bytes, options));
}

TEST(Session, NamesTheOperatorThatLetsNoGradientThrough) {
  const std::string bytes = model_bytes(
      "g (float[n] x) => (float[n] y) <float[1] w = {1.0}> { a = Mul(x, w) y = Floor(a) }");
  try {
    session_of(bytes, {.loss = "mse"});
    FAIL() << "accepted";
  } catch (const ModelError& e) {
    EXPECT_TRUE(contains(e.what(), "no gradient passes Floor")) << e.what();
  }
}

TEST(Session, SettingsOfOperatorsAreNotTrained) {
  const std::string bytes = model_bytes(
      R"(g (float[n, 2] x) => (float[n, 2] y)
      <float[2] w = {1.0, 2.0}, float[1] power = {2.0}, float half = {0.5}>
      { a = Mul(x, w)  b = Pow(a, power)  y = Mul(b, half) })");
  EXPECT_EQ(session_of(bytes, {.loss = "mse"}).parameter_names(), (std::vector<std::string>{"w"}));
  EXPECT_EQ(session_of(bytes, {.loss = "mse", .trainable = {"half"}}).parameter_names(),
            (std::vector<std::string>{"half"}));
}

TEST(Session, RefusesOptionsOutOfRange) {
  auto refused = [](auto change) {
    TrainingOptions options{.loss = "mse"};
    change(options);
    EXPECT_THROW(session_of(linear_bytes(), options), ModelError);
  };
  refused([](auto& o) { o.optimizer.kind = "adafactors"; });
  refused([](auto& o) { o.optimizer.kind = "muon"; });  // the bias has one axis
  refused([](auto& o) { o.optimizer.centered = true; });
  refused([](auto& o) { o.optimizer.lr = -1; });
  refused([](auto& o) { o.optimizer.lr = NAN; });
  refused([](auto& o) { o.optimizer.beta2 = 1; });
  refused([](auto& o) { o.optimizer = {.kind = "sgd", .nesterov = true}; });
  refused([](auto& o) { o.clip_norm = -1; });
  refused([](auto& o) { o.schedule.kind = "cosine"; });
  refused([](auto& o) { o.step_outputs = {"z"}; });
  refused([](auto& o) { o.label = "weight"; });
  refused([](auto& o) { o.groups = {{.names = {"nobody"}}}; });
  refused([](auto& o) { o.groups = {{.names = {"bias"}}, {.names = {"weight", "bias"}}}; });
  refused([](auto& o) { o.groups = {{.names = {"bias", "bias"}}}; });
}

TEST(Session, RefusesOptionsThatItWouldNotRead) {
  auto refused = [](auto change) {
    TrainingOptions options{.loss = "mse"};
    EXPECT_NO_THROW(session_of(linear_bytes(), options));
    change(options);
    EXPECT_THROW(session_of(linear_bytes(), options), ModelError);
    EXPECT_EQ(check_model(testing::as_span(linear_bytes()), options).obstacles.size(), 1u);
  };
  refused([](auto& o) { o.ignore_index = 3; });
  refused([](auto& o) { o.schedule.total_steps = 100; });
  refused([](auto& o) { o.schedule.min_lr_ratio = 0.1; });
  refused([](auto& o) { o.optimizer.momentum = 0.9; });
  auto all_on_disk = [] { session_of(linear_bytes(), {.loss = "mse", .offload = "all"}); };
  EXPECT_TRUE(contains(message_of<ModelError>(all_on_disk), "offload_folder"));
  auto session = session_of(linear_bytes(), {.loss = "mse"});
  EXPECT_THROW(session.set_schedule({.total_steps = 100}), ModelError);
}

TEST(Session, EvaluatesWithTheSeedThatWasSet) {
  const std::string noisy = model_bytes(R"(g (float[rows, 2] x) => (float[rows, 1] y)
    <float[2, 1] w = {0.5, -0.25}> { p = MatMul(x, w)  n = RandomNormalLike(p)  y = Add(p, n) })");
  const Tensor x = random_tensor({3, 2}, 1), y = random_tensor({3, 1}, 2);
  auto given = session_of(noisy, {.loss = "mse", .seed = 5}),
       set = session_of(noisy, {.loss = "mse"});
  set.eval({x, y});
  set.set_seed(5);
  given.eval({x, y});
  EXPECT_EQ(*given.eval({x, y}).loss, *set.eval({x, y}).loss);
}

TEST(Session, ReadsAndWritesItsState) {
  auto a = session_of(mlp_bytes(true), classifier()), b = session_of(mlp_bytes(true), classifier());
  for (unsigned i = 0; i < 3; ++i) a.step(batch(i));
  b.set_weights(a.weights());
  b.set_optimizer_state(a.optimizer_state());
  b.set_step_count(a.step_count());
  b.set_run_count(a.run_count());
  EXPECT_EQ(a.step(batch(9)).loss, b.step(batch(9)).loss);
  EXPECT_TRUE(same_tensors(a.weights(), b.weights()));

  const auto before = a.weights();
  EXPECT_THROW(
      a.set_weights({{"b1", Tensor::zeros(DType::f32, {4})}, {"w9", Tensor::scalar(1.0f)}}),
      ModelError);
  EXPECT_THROW(a.set_weights({{"b0", Tensor::zeros(DType::f32, {5})},
                              {"b1", Tensor::zeros(DType::f32, {5})}}),
               ShapeError);
  EXPECT_THROW(a.set_optimizer_state({{"w0", before.at("w0")}}), ModelError);
  EXPECT_TRUE(contains(message_of<ModelError>([&] { a.state("exp_avg/w"); }), "exp_avg/w0"));
  EXPECT_TRUE(same_tensors(a.weights(), before));
  a.set_lr(0.5);
  EXPECT_GT(a.lr(), 0.01);
  for (const double rate : {-1.0, 1e39, double{INFINITY}, double{NAN}})
    EXPECT_THROW(a.set_lr(rate), DataError) << rate;
}

TEST(Session, GradientsSeeTheNextStepsDropout) {
  auto session = session_of(
      mlp_bytes(true), {.loss = "softmax_cross_entropy", .optimizer = {.kind = "sgd", .lr = 0.1}});
  const auto inputs = batch(1);
  const auto before = session.weights();
  double loss = 0;
  const auto gradients = session.gradients(inputs, &loss);
  EXPECT_TRUE(same_tensors(session.weights(), before));
  EXPECT_EQ(session.step(inputs).loss, loss);
  for (const auto& [name, g] : gradients) {
    const Tensor now = session.state(name);
    for (int64_t i = 0; i < g.size(); ++i) {
      EXPECT_NEAR(now.data<float>()[i],
                  before.at(name).data<float>()[i] - 0.1f * g.data<float>()[i], 1e-6);
    }
  }
  // Evaluation has no dropout: it gives the same loss twice, and another one than training.
  EXPECT_EQ(*session.eval(inputs).loss, *session.eval(inputs).loss);
  EXPECT_NE(session.gradients(inputs, &loss).size(), 0u);
  EXPECT_NE(*session.eval(inputs).loss, loss);
}

class SessionFiles : public testing::TempFolder {};

TEST_F(SessionFiles, ResumeIsBitExactAfterEveryStep) {
  constexpr unsigned kSteps = 8;
  for (const char* kind : {"sgd", "adam", "adamw", "lamb"}) {
    TrainingOptions options = classifier(kind);
    if (options.optimizer.kind == "sgd") options.optimizer.momentum = 0.9;
    auto whole = session_of(mlp_bytes(true), options);
    std::vector<double> losses;
    for (unsigned i = 0; i < kSteps; ++i) {
      whole.save_checkpoint(folder() / std::to_string(i), R"({"i":)" + std::to_string(i) + "}");
      losses.push_back(whole.step(batch(i)).loss);
    }
    for (unsigned start = 0; start < kSteps; ++start) {
      TrainingOptions other = options;
      other.seed = 99;  // the checkpoint's seed is used
      auto resumed = session_of(mlp_bytes(true), other);
      resumed.step(batch(77));
      EXPECT_EQ(resumed.load_checkpoint(folder() / std::to_string(start)),
                R"({"i":)" + std::to_string(start) + "}");
      for (unsigned i = start; i < kSteps; ++i) {
        EXPECT_EQ(resumed.step(batch(i)).loss, losses[i]) << kind << " from " << start;
      }
      EXPECT_TRUE(same_tensors(resumed.weights(), whole.weights())) << kind << " from " << start;
      EXPECT_TRUE(same_tensors(resumed.optimizer_state(), whole.optimizer_state()));
    }
  }
}

TEST_F(SessionFiles, CheckpointsOfOthersAreRefused) {
  auto session = session_of(mlp_bytes(false), classifier());
  session.step(batch(1));
  const auto weights = session.weights(), moments = session.optimizer_state();
  auto refused = [&](const std::string& bytes, TrainingOptions options) {
    session_of(bytes, std::move(options)).save_checkpoint(folder() / "other");
    EXPECT_THROW(session.load_checkpoint(folder() / "other"), CheckpointError);
    EXPECT_TRUE(same_tensors(session.weights(), weights));
    EXPECT_TRUE(same_tensors(session.optimizer_state(), moments));
    EXPECT_EQ(session.step_count(), 1);
  };
  refused(linear_bytes(), {.loss = "mse"});
  refused(mlp_bytes(false), classifier("sgd"));
  refused(mlp_bytes(true), classifier());
  std::string tanh = mlp_bytes(false);
  tanh.replace(tanh.find("Relu"), 4, "Tanh");
  refused(tanh, classifier());
  session.save_checkpoint(folder() / "own");
  EXPECT_NO_THROW(session.load_checkpoint(folder() / "own"));
}

TEST_F(SessionFiles, TheLastStepIsRefusedBeforeItChangesAnything) {
  auto session = session_of(linear_bytes(), {.loss = "mse"});
  session.set_step_count(INT64_MAX);
  session.save_checkpoint(folder() / "run");
  const auto weights = session.weights();
  const std::vector<Tensor> batch{Tensor::zeros(DType::f32, {2, 2}),
                                  Tensor::zeros(DType::f32, {2, 1})};
  EXPECT_THROW(session.step(batch), DataError);
  EXPECT_TRUE(same_tensors(session.weights(), weights));
  EXPECT_EQ(session.step_count(), INT64_MAX);
  session.load_checkpoint(folder() / "run");
}

TEST_F(SessionFiles, AnotherNumberOfThreadsIsSaid) {
  const int before = omp_get_max_threads();
  auto session = session_of(linear_bytes(), {.loss = "mse"});
  EXPECT_EQ(session.checkpoint_note(), "");
  omp_set_num_threads(3);
  session.save_checkpoint(folder() / "run");
  session.load_checkpoint(folder() / "run");
  EXPECT_EQ(session.checkpoint_note(), "");
  omp_set_num_threads(2);
  session.load_checkpoint(folder() / "run");
  EXPECT_TRUE(contains(session.checkpoint_note(), "3 threads"));
  EXPECT_TRUE(contains(session.checkpoint_note(), "2 now"));
  // Older checkpoints do not contain the number of threads.
  Checkpoint older = read_checkpoint(folder() / "run");
  older.threads = 0;
  write_checkpoint(folder() / "run", older);
  EXPECT_FALSE(contains(testing::read_bytes(folder() / "run" / "manifest.json"), "threads"));
  session.load_checkpoint(folder() / "run");
  EXPECT_EQ(session.checkpoint_note(), "");
  omp_set_num_threads(before);
}

TEST_F(SessionFiles, OtherOptionsAreSaid) {
  const auto session = session_of(linear_bytes(), {.loss = "mse"});
  session.save_checkpoint(folder() / "run");
  auto clipped = session_of(linear_bytes(), {.loss = "mse", .clip_norm = 1});
  clipped.load_checkpoint(folder() / "run");
  EXPECT_TRUE(contains(clipped.checkpoint_note(), "clip_norm 0 → 1"));
  clipped.set_schedule({.kind = "linear", .total_steps = 9});
  EXPECT_TRUE(contains(clipped.checkpoint_note(), "total_steps 0 → 9"));
  Checkpoint older = read_checkpoint(folder() / "run");  // older ones do not contain options
  older.settings.clear();
  write_checkpoint(folder() / "run", older);
  clipped.load_checkpoint(folder() / "run");
  EXPECT_EQ(clipped.checkpoint_note(), "");
}

TEST_F(SessionFiles, ExportHasTheTrainedWeights) {
  auto session = session_of(mlp_bytes(true), classifier());
  for (unsigned i = 0; i < 5; ++i) session.step(batch(i));
  session.export_onnx(folder() / "trained.onnx");
  TrainingSession again(folder() / "trained.onnx", classifier());
  EXPECT_TRUE(same_tensors(again.weights(), session.weights()));
  EXPECT_EQ(*again.eval(batch(1)).loss, *session.eval(batch(1)).loss);
}

TEST_F(SessionFiles, ProfileHasOneRowPerKernel) {
  auto session = session_of(mlp_bytes(false), classifier());
  EXPECT_THROW(session.write_profile(folder() / "trace.json"), DataError);
  session.start_profile();
  session.step(batch(1));
  session.write_profile(folder() / "trace.json");
  const std::string trace = testing::read_bytes(folder() / "trace.json");
  EXPECT_TRUE(contains(trace, "traceEvents") && contains(trace, "steep.Adam"));
  EXPECT_TRUE(contains(trace, "GFLOP/s"));
  session.start_profile();
  EXPECT_THROW(session.write_profile(folder() / "absent" / "trace.json"), IoError);
}

}  // namespace
}  // namespace steep
