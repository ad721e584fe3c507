// User-defined optimizers: Lion against plain loops.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "errors/refused.h"
#include "steep/ops.h"
#include "train/models.h"

namespace steep {
namespace {

using testing::as_span;
using testing::has;
using testing::linear_bytes;
using testing::random_tensor;
using testing::refused;
using testing::same_tensors;
using testing::session_of;

constexpr const char* kLion = R"(
  lion <beta1: float = 0.9, beta2: float = 0.99, weight_decay: float = 0.0>
    (w, g, exp_avg, lr, step) => (w1, m1) {
  b1 = Constant <value_float: float = @beta1> ()
  b2 = Constant <value_float: float = @beta2> ()
  wd = Constant <value_float: float = @weight_decay> ()
  d = Sub (exp_avg, g)
  e = Mul (b1, d)
  c = Add (e, g)
  sign = Sign (c)
  decay = Mul (wd, w)
  u = Add (sign, decay)
  change = Mul (lr, u)
  w1 = Sub (w, change)
  e2 = Mul (b2, d)
  m1 = Add (e2, g)
})";

class Optimizer {
 public:
  explicit Optimizer(const std::string& text) {
    onnx::FunctionProto f;
    const std::string whole =
        "<domain: \"steep.optimizer\", opset_import: [\"\" : 18, \"my\" : 1]> " + text;
    const auto status = onnx::OnnxParser::Parse(f, whole.c_str());
    EXPECT_TRUE(status.IsOK()) << status.ErrorMessage();
    const std::string bytes = f.SerializeAsString();
    names_ = register_optimizer(as_span(bytes));
  }
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  ~Optimizer() { take_back(); }
  void take_back() {
    for (const std::string& name : names_) unregister_op(name);
    names_.clear();
  }

 private:
  std::vector<std::string> names_;
};

constexpr int64_t kRows = 6;

/// weight[0], weight[1], bias of y = x·weight + bias.
struct Reference {
  std::vector<float> w{0.5F, -0.25F, 0.125F}, m{0, 0, 0};

  void step(const Tensor& x, const Tensor& t, float lr, float beta1, float beta2, float decay) {
    std::vector<float> g(3);
    for (int64_t i = 0; i < kRows; ++i) {
      const float a = x.data<float>()[2 * i], b = x.data<float>()[2 * i + 1];
      const float error = 2 * (w[0] * a + w[1] * b + w[2] - t.data<float>()[i]) / kRows;
      g[0] += error * a;
      g[1] += error * b;
      g[2] += error;
    }
    for (size_t i = 0; i < 3; ++i) {
      const float c = beta1 * m[i] + (1 - beta1) * g[i];
      const float sign = static_cast<float>(c > 0) - static_cast<float>(c < 0);
      w[i] -= lr * (sign + decay * w[i]);
      m[i] = beta2 * m[i] + (1 - beta2) * g[i];
    }
  }
};

void expect_near(const TrainingSession& s, const Reference& r, float tolerance = 2e-6F) {
  const auto near = [&](const char* name, const std::vector<float>& expected, size_t at) {
    const Tensor t = s.state(name);
    for (int64_t i = 0; i < t.size(); ++i) {
      EXPECT_NEAR(t.data<float>()[i], expected[at + static_cast<size_t>(i)], tolerance) << name;
    }
  };
  near("weight", r.w, 0);
  near("bias", r.w, 2);
  near("exp_avg/weight", r.m, 0);
  near("exp_avg/bias", r.m, 2);
}

TEST(CustomOptimizer, LionFollowsItsDefinition) {
  const Optimizer lion(kLion);
  TrainingSession s = session_of(
      linear_bytes(),
      {.loss = "mse",
       .optimizer = {
           .kind = "lion", .lr = 0.01, .weight_decay = 0.1, .attributes = {{"beta2", 0.95}}}});
  EXPECT_EQ(s.optimizer_state_names(),
            (std::vector<std::string>{"exp_avg/weight", "exp_avg/bias"}));
  Reference reference;
  for (unsigned i = 0; i < 20; ++i) {
    const Tensor x = random_tensor({kRows, 2}, i), t = random_tensor({kRows, 1}, 99 + i);
    s.step({x, t});
    reference.step(x, t, 0.01F, 0.9F, 0.95F, 0.1F);
    expect_near(s, reference);
  }
}

TEST(CustomOptimizer, SchedulesGroupsClippingAndDirectionHold) {
  const Optimizer plain(
      "plain <weight_decay: float = 0.0> (w, g, last, lr, step) => (v, l) {"
      " k = Constant <value_float: float = @weight_decay> ()"
      " d = Mul (k, w)  h = Add (g, d)  c = Mul (lr, h)  v = Sub (w, c)"
      " l = Identity (g) }");
  const Tensor x = random_tensor({kRows, 2}, 1), t = random_tensor({kRows, 1}, 2);
  TrainingOptions own{.loss = "mse",
                      .groups = {{.names = {"bias"}, .lr_multiplier = 0.5, .weight_decay = 0.3}},
                      .optimizer = {.kind = "plain", .lr = 0.1, .weight_decay = 0.2},
                      .schedule = {.kind = "linear", .total_steps = 10},
                      .clip_norm = 0.05};
  for (const bool maximize : {false, true}) {
    own.optimizer.maximize = maximize;
    TrainingOptions ours = own;
    ours.optimizer.kind = "sgd";
    TrainingSession a = session_of(linear_bytes(), own), b = session_of(linear_bytes(), ours);
    for (int i = 0; i < 6; ++i) {
      const StepResult one = a.step({x, t}), other = b.step({x, t});
      EXPECT_EQ(one.grad_norm, other.grad_norm);
      for (const char* name : {"weight", "bias"}) {
        EXPECT_NEAR(*a.state(name).data<float>(), *b.state(name).data<float>(), 1e-6) << name;
      }
    }
    // the optimizer gets the gradient after clipping
    EXPECT_LE(std::abs(*a.state("last/bias").data<float>()), 0.0501F);
    EXPECT_NE(*a.state("last/bias").data<float>(), 0);
  }
}

TEST(CustomOptimizer, NoReaderSeesAnUpdatedValue) {
  // weight and state are swapped: each is written while the update of the other reads it
  const Optimizer swap(
      "swap (w, g, s, lr, step) => (v, t) {"
      " one = CastLike (step, w)  v = Add (s, one)  t = Identity (w) }");
  TrainingSession s = session_of(linear_bytes(), {.loss = "mse", .optimizer = {.kind = "swap"}});
  const Tensor x = random_tensor({kRows, 2}, 1), t = random_tensor({kRows, 1}, 2);
  s.step({x, t});
  EXPECT_EQ(*s.state("weight").data<float>(), 1);  // 0 + step 1
  EXPECT_EQ(*s.state("s/weight").data<float>(), 0.5F);
  s.step({x, t});
  EXPECT_EQ(*s.state("weight").data<float>(), 2.5F);
  EXPECT_EQ(*s.state("s/weight").data<float>(), 1);

  const Optimizer exchange(
      "exchange (w, g, s, lr, step) => (v, t)"
      " { v = Identity (s)  t = Identity (w) }");
  TrainingSession e =
      session_of(linear_bytes(), {.loss = "mse", .optimizer = {.kind = "exchange"}});
  e.step({x, t});
  EXPECT_EQ(*e.state("weight").data<float>(), 0);
  EXPECT_EQ(*e.state("s/weight").data<float>(), 0.5F);
  e.step({x, t});
  EXPECT_EQ(*e.state("weight").data<float>(), 0.5F);
}

TEST(CustomOptimizer, StatesAreWrittenWhereTheyAreMade) {
  const Tensor x = random_tensor({kRows, 2}, 1), t = random_tensor({kRows, 1}, 2);
  const auto copies = [&](const char* kind) {
    TrainingSession s = session_of(linear_bytes(), {.loss = "mse", .optimizer = {.kind = kind}});
    const std::vector<Tensor> inputs{x, t};
    const std::string text = s.dump(inputs);
    int found = 0;
    for (size_t at = 0; (at = text.find("Assign[copy]", at)) != std::string::npos; ++at) ++found;
    EXPECT_FALSE(has(text, "copy[copy]")) << text;  // nothing is copied at the end of the step
    return found;
  };
  const Optimizer sum(
      "sum (w, g, m, lr, step) => (v, n)"
      " { n = Add (m, g)  c = Mul (lr, n)  v = Sub (w, c) }");
  EXPECT_EQ(copies("sum"), 0);
  const Optimizer keep(
      "keep (w, g, last, lr, step) => (v, l)"
      " { c = Mul (lr, g)  v = Sub (w, c)  l = Identity (g) }");
  EXPECT_EQ(copies("keep"), 2);  // the gradients of weight and bias have other readers
}

TEST(CustomOptimizer, AStepThatIsGivenUpWritesNothing) {
  // the state is the gradient itself, which is computed before check_finite looks at it
  const Optimizer keep(
      "keep (w, g, last, lr, step) => (v, l)"
      " { c = Mul (lr, g)  v = Sub (w, c)  l = Identity (g) }");
  TrainingSession s = session_of(
      linear_bytes(), {.loss = "mse", .optimizer = {.kind = "keep"}, .check_finite = true});
  const auto weights = s.weights(), states = s.optimizer_state();
  Tensor x = random_tensor({kRows, 2}, 1);
  const Tensor t = random_tensor({kRows, 1}, 2);
  x.data<float>()[0] = INFINITY;
  EXPECT_THROW(s.step({x, t}), DataError);
  EXPECT_TRUE(same_tensors(weights, s.weights()));
  EXPECT_TRUE(same_tensors(states, s.optimizer_state()));
}

TEST(CustomOptimizer, SkipsStepsWhoseGradientsOverflow) {
  const Optimizer lion(kLion);
  TrainingSession s = session_of(linear_bytes(), {.loss = "mse",
                                                  .optimizer = {.kind = "lion", .lr = 0.01},
                                                  .precision = "fp16",
                                                  .loss_scale = {.initial = 1024}});
  Reference reference;
  Tensor x = random_tensor({kRows, 2}, 1);
  const Tensor t = random_tensor({kRows, 1}, 2);
  s.step({x, t});
  reference.step(x, t, 0.01F, 0.9F, 0.99F, 0);
  expect_near(s, reference, 1e-3F);
  const auto weights = s.weights(), states = s.optimizer_state();
  Tensor large = x.clone();
  for (int64_t i = 0; i < large.size(); ++i) large.data<float>()[i] = 60000;
  const StepResult skipped = s.step({large, t});
  EXPECT_TRUE(skipped.skipped);
  EXPECT_TRUE(same_tensors(weights, s.weights()));
  EXPECT_TRUE(same_tensors(states, s.optimizer_state()));
}

TEST(CustomOptimizer, GroupsHaveOptimizersOfTheirOwn) {
  const Optimizer lion(kLion);
  const OptimizerOptions own{.kind = "lion", .lr = 0.01};
  TrainingSession s =
      session_of(linear_bytes(), {.loss = "mse",
                                  .groups = {{.names = {"weight", "bias"}, .optimizer = own}},
                                  .optimizer = {.kind = "sgd"}});
  Reference reference;
  for (unsigned i = 0; i < 6; ++i) {
    OptimizerOptions now = own;
    now.lr = 0.01 * (i + 1);
    s.set_group(0, now);
    const Tensor x = random_tensor({kRows, 2}, i), t = random_tensor({kRows, 1}, 99 + i);
    s.step({x, t});
    reference.step(x, t, static_cast<float>(now.lr), 0.9F, 0.99F, 0);
    expect_near(s, reference);
  }
  OptimizerOptions other = own;
  other.attributes["beta1"] = 0.5;
  EXPECT_TRUE(has(refused([&] { s.set_group(0, other); }).what, "compiled in"));
  other = own;
  other.weight_decay = 0.5;
  EXPECT_TRUE(has(refused([&] { s.set_group(0, other); }).what, "compiled in"));
}

TEST(CustomOptimizer, SessionsKeepWhatTheyWereMadeWith) {
  Optimizer lion(kLion);
  TrainingSession s =
      session_of(linear_bytes(),
                 {.loss = "mse", .optimizer = {.kind = "lion", .lr = 0.01}, .check_finite = true});
  lion.take_back();
  const Optimizer other("lion (w, g, lr, step) => (v) { v = Identity (w) }");
  Reference reference;
  Tensor x = random_tensor({kRows, 2}, 1);
  const Tensor t = random_tensor({kRows, 1}, 2);
  s.step({x, t});
  reference.step(x, t, 0.01F, 0.9F, 0.99F, 0);
  expect_near(s, reference);
  // the step is rebuilt to find the cause
  x.data<float>()[0] = INFINITY;
  EXPECT_THROW(s.step({x, t}), DataError);
  refused([] {  // it has no state and no weight decay
    session_of(linear_bytes(), {.loss = "mse", .optimizer = {.kind = "lion", .weight_decay = 0.1}});
  });
}

TEST(CustomOptimizer, CheckpointsAreForTheSameFunction) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("own_optimizer_" + std::to_string(getpid()));
  const TrainingOptions options{.loss = "mse", .optimizer = {.kind = "lion", .lr = 0.01}};
  const Tensor x = random_tensor({kRows, 2}, 1), t = random_tensor({kRows, 1}, 2);
  {
    const Optimizer lion(kLion);
    TrainingSession s = session_of(linear_bytes(), options);
    for (int i = 0; i < 3; ++i) s.step({x, t});
    s.save_checkpoint(folder);
    for (int i = 0; i < 3; ++i) s.step({x, t});
    TrainingSession again = session_of(linear_bytes(), options);
    again.load_checkpoint(folder);
    for (int i = 0; i < 3; ++i) again.step({x, t});
    EXPECT_TRUE(same_tensors(s.weights(), again.weights()));
    EXPECT_TRUE(same_tensors(s.optimizer_state(), again.optimizer_state()));
    TrainingSession adam = session_of(linear_bytes(), {.loss = "mse"});
    EXPECT_THROW(adam.load_checkpoint(folder), CheckpointError);
  }
  const Optimizer other(
      "lion (w, g, exp_avg, lr, step) => (v, m)"
      " { c = Mul (lr, g)  v = Sub (w, c)  m = Add (exp_avg, g) }");
  TrainingSession s = session_of(linear_bytes(), options);
  EXPECT_THROW(s.load_checkpoint(folder), CheckpointError);
  std::filesystem::remove_all(folder);
}

TEST(CustomOptimizer, ComputesInDoubleForDoubles) {
  const Optimizer lion(
      "lion (w, g, m, lr, step) => (v, n) {"
      " s = Sign (g)  c = Mul (lr, s)  v = Sub (w, c)  n = Add (m, g) }");
  const std::string bytes = testing::model_bytes(R"(g (double[rows, 2] x) => (double[rows, 1] y)
    <double[2, 1] weight = {0.5, -0.25}> { y = MatMul (x, weight) })");
  TrainingSession s =
      session_of(bytes, {.loss = "mse", .optimizer = {.kind = "lion", .lr = 0.125}});
  Tensor x = Tensor::zeros(DType::f64, {1, 2}), t = Tensor::zeros(DType::f64, {1, 1});
  x.data<double>()[0] = 1;
  s.step({x, t});
  EXPECT_EQ(s.state("m/weight").dtype(), DType::f64);
  EXPECT_EQ(*s.state("weight").data<double>(), 0.375);
}

TEST(CustomOptimizer, RefusesWhatItDoesNotHave) {
  const Optimizer lion(kLion);
  const Optimizer plain(
      "plain <k> (w, g, lr, step) => (v) {"
      " c = Constant <value_float: float = @k> ()"
      " d = Mul (g, c)  v = Sub (w, d) }");
  const auto what = [](OptimizerOptions o) {
    return refused([&] { session_of(linear_bytes(), {.loss = "mse", .optimizer = std::move(o)}); })
        .what;
  };
  EXPECT_TRUE(has(what({.kind = "lion", .momentum = 0.9}), "momentum"));
  EXPECT_TRUE(has(what({.kind = "lion", .beta1 = 0.5}), "beta1"));
  EXPECT_TRUE(has(what({.kind = "lion", .epsilon = 1e-8}), "epsilon"));
  EXPECT_TRUE(has(what({.kind = "lion", .amsgrad = true}), "amsgrad"));
  EXPECT_TRUE(has(what({.kind = "lion", .attributes = {{"gamma", 1}}}), "gamma"));
  EXPECT_TRUE(has(what({.kind = "lion", .attributes = {{"weight_decay", 1}}}), "weight_decay"));
  EXPECT_TRUE(has(what({.kind = "sgd", .attributes = {{"beta1", 1}}}), "beta1"));
  EXPECT_TRUE(has(what({.kind = "plain"}), "lacks an attribute"));
  EXPECT_TRUE(
      has(what({.kind = "plain", .weight_decay = 0.1, .attributes = {{"k", 1}}}), "weight decay"));
  EXPECT_TRUE(has(what({.kind = "tiger"}), "unknown"));
}

TEST(CustomOptimizer, RefusesFunctionsThatAreNone) {
  const auto what = [](const std::string& text) {
    return refused([&] { const Optimizer bad(text); }).what;
  };
  EXPECT_TRUE(has(what("sgd (w, g, lr, step) => (v) { v = Neg (w) }"), "has this name"));
  EXPECT_TRUE(has(what("o (w, g, m, lr, step) => (v) { v = Neg (w) }"),
                  "wrong number of inputs or outputs"));
  EXPECT_TRUE(
      has(what("o (w, lr, step) => (v) { v = Neg (w) }"), "wrong number of inputs or outputs"));
  EXPECT_TRUE(has(what("o (w, g, step, lr, t) => (v, u) { v = Neg (w)  u = Neg (g) }"), "name"));
  EXPECT_TRUE(has(what("o <weight_decay: float = 0.1> (w, g, lr, step) => (v) { v = Neg (w) }"),
                  "default"));
  EXPECT_TRUE(registered_ops().empty());
  const auto at_use = [](const std::string& body) {
    const Optimizer bad("o (w, g, lr, step) => (v) {" + body + "}");
    return refused([] { session_of(linear_bytes(), {.loss = "mse", .optimizer = {.kind = "o"}}); });
  };
  const ErrorParts shape = at_use("v = ReduceSum (w)");
  EXPECT_EQ(shape.node, "o");
  EXPECT_TRUE(has(shape.expected, "weight"));
  EXPECT_TRUE(has(shape.received, "[1, 1]"));
  EXPECT_TRUE(has(at_use("v = Cast <to = 11> (w)").received, "float64"));
  EXPECT_TRUE(has(at_use("n = RandomNormalLike (w)  v = Add (w, n)").what, "random"));
}

}  // namespace
}  // namespace steep
