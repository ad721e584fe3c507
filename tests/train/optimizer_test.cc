// The trajectory of each optimizer on a linear model, against plain loops in double precision.
#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/models.h"
#include "train/schedule.h"

namespace steep {
namespace {

using testing::linear_bytes;
using testing::random_tensor;
using testing::session_of;

constexpr int64_t kRows = 6;
constexpr int kSteps = 12;

/// weight[0], weight[1], bias: two tensors with two and one elements, which matters for LAMB's
/// norms.
struct Reference {
  std::vector<double> w{0.5, -0.25, 0.125};
  std::vector<double> m = std::vector<double>(3), v = std::vector<double>(3);
  double norm = 0;

  double gradient(const Tensor& x, const Tensor& t, std::vector<double>* g) const {
    g->assign(3, 0);
    double loss = 0;
    for (int64_t i = 0; i < kRows; ++i) {
      const double a = x.data<float>()[2 * i], b = x.data<float>()[2 * i + 1];
      const double error = w[0] * a + w[1] * b + w[2] - t.data<float>()[i];
      loss += error * error / kRows;
      const double d = 2 * error / kRows;
      (*g)[0] += d * a;
      (*g)[1] += d * b;
      (*g)[2] += d;
    }
    return loss;
  }

  void update(const OptimizerOptions& o, double lr, int t, std::vector<double> g) {
    const std::pair<size_t, size_t> tensors[] = {{0, 2}, {2, 3}};
    for (const auto& [begin, end] : tensors) {
      std::vector<double> r(3);
      double w_norm = 0, r_norm = 0;
      for (size_t i = begin; i < end; ++i) {
        if (o.kind == "sgd") {
          g[i] += o.weight_decay * w[i];
          if (const double momentum = o.momentum.value_or(0); momentum != 0) {
            m[i] = t == 1 ? g[i] : momentum * m[i] + (1 - o.dampening) * g[i];
            r[i] = o.nesterov.value_or(false) ? g[i] + momentum * m[i] : m[i];
          } else {
            r[i] = g[i];
          }
          continue;
        }
        if (o.kind == "adam") g[i] += o.weight_decay * w[i];
        m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
        v[i] = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i];
        const double m_hat = o.bias_correction ? m[i] / (1 - std::pow(o.beta1, t)) : m[i];
        const double v_hat = o.bias_correction ? v[i] / (1 - std::pow(o.beta2, t)) : v[i];
        r[i] = m_hat / (std::sqrt(v_hat) + o.epsilon.value_or(1e-8));
        if (o.kind == "adamw" || o.kind == "lamb") r[i] += o.weight_decay * w[i];
        w_norm += w[i] * w[i];
        r_norm += r[i] * r[i];
      }
      const bool trust = o.kind == "lamb" && w_norm > 0 && r_norm > 0;
      const double ratio = trust ? std::sqrt(w_norm / r_norm) : 1;
      for (size_t i = begin; i < end; ++i) w[i] -= lr * ratio * r[i];
    }
  }

  /// One step; returns the loss.
  double step(const TrainingOptions& o, int t, const Tensor& x, const Tensor& label) {
    std::vector<double> g;
    const double loss = gradient(x, label, &g);
    norm = std::sqrt(g[0] * g[0] + g[1] * g[1] + g[2] * g[2]);
    if (o.clip_norm > 0) {
      for (double& d : g) d *= std::min(1.0, o.clip_norm / (norm + 1e-6));
    }
    update(o.optimizer, o.optimizer.lr * schedule_factor(o.schedule, t - 1), t, g);
    return loss;
  }
};

struct Case {
  const char* name;
  OptimizerOptions optimizer;
  double clip_norm = 0;
  ScheduleOptions schedule{};
};

class Trajectory : public ::testing::TestWithParam<Case> {};

TEST_P(Trajectory, IsThatOfPlainLoops) {
  const TrainingOptions options{.loss = "mse",
                                .optimizer = GetParam().optimizer,
                                .schedule = GetParam().schedule,
                                .clip_norm = GetParam().clip_norm,
                                .grad_norm = true};
  TrainingSession session = session_of(linear_bytes(), options);
  Reference reference;
  for (int t = 1; t <= kSteps; ++t) {
    const auto seed = static_cast<unsigned>(t);
    const Tensor x = random_tensor({kRows, 2}, seed), label = random_tensor({kRows, 1}, seed + 100);
    const double expected = reference.step(options, t, x, label);
    const StepResult result = session.step({x, label});
    EXPECT_NEAR(result.loss, expected, 1e-5) << "step " << t;
    EXPECT_NEAR(result.grad_norm, reference.norm, 1e-4) << "step " << t;
    EXPECT_EQ(result.step, t);
    const Tensor weight = session.state("weight"), bias = session.state("bias");
    EXPECT_NEAR(weight.data<float>()[0], reference.w[0], 2e-5) << "step " << t;
    EXPECT_NEAR(weight.data<float>()[1], reference.w[1], 2e-5) << "step " << t;
    EXPECT_NEAR(bias.data<float>()[0], reference.w[2], 2e-5) << "step " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, Trajectory,
    ::testing::Values(
        Case{"sgd", {.kind = "sgd", .lr = 0.1}},
        Case{"sgd_decay", {.kind = "sgd", .lr = 0.1, .weight_decay = 0.1}},
        Case{"momentum", {.kind = "sgd", .lr = 0.05, .momentum = 0.9, .dampening = 0.3}},
        Case{"nesterov",
             {.kind = "sgd", .lr = 0.05, .weight_decay = 0.01, .momentum = 0.9, .nesterov = true}},
        Case{"adam", {.kind = "adam", .lr = 0.05}},
        Case{"adam_decay",
             {.kind = "adam", .lr = 0.05, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95}},
        Case{"adamw", {.kind = "adamw", .lr = 0.05, .weight_decay = 0.1}},
        Case{"adam_uncorrected", {.kind = "adam", .lr = 0.05, .bias_correction = false}},
        Case{"adamw_uncorrected",
             {.kind = "adamw", .lr = 0.05, .weight_decay = 0.1, .bias_correction = false}},
        Case{"lamb", {.kind = "lamb", .lr = 0.05, .weight_decay = 0.1, .epsilon = 1e-6}},
        Case{"lamb_uncorrected",
             {.kind = "lamb", .lr = 0.05, .epsilon = 1e-6, .bias_correction = false}},
        Case{"clipped", {.kind = "sgd", .lr = 0.1}, 0.25},
        Case{"clipped_adamw", {.kind = "adamw", .lr = 0.05}, 0.25},
        Case{"cosine",
             {.kind = "sgd", .lr = 0.1},
             0,
             {.kind = "cosine", .warmup_steps = 3, .total_steps = 10, .min_lr_ratio = 0.1}}),
    [](const auto& info) { return info.param.name; });

TEST(Groups, CountStepsByWholeNumbersOnly) {
  const OptimizerOptions own{.kind = "adam", .lr = 0.05};
  TrainingSession session = session_of(
      linear_bytes(), {.loss = "mse", .groups = {{.names = {"bias"}, .optimizer = own}}});
  const auto before = session.optimizer_state();
  for (const float count : {-5.0f, NAN, INFINITY, 1.5f}) {
    auto moments = before;
    moments["step/bias"] = Tensor::scalar(count);
    EXPECT_THROW(session.set_optimizer_state(moments), DataError) << count;
    EXPECT_EQ(session.state("step/bias").data<float>()[0], 0);
  }
  EXPECT_THROW(session.set_step_count(-1), DataError);
  session.set_optimizer_state({{"step/bias", Tensor::scalar(7.0f)}});
}

TEST(Groups, HaveTheirOwnRateAndDecay) {
  const Tensor x = random_tensor({kRows, 2}, 1), label = random_tensor({kRows, 1}, 2);
  TrainingOptions options{.loss = "mse",
                          .optimizer = {.kind = "sgd", .lr = 0.1, .weight_decay = 0.5}};
  options.groups = {{.names = {"bias"}, .lr_multiplier = 0.5, .weight_decay = 0.0}};
  TrainingSession session = session_of(linear_bytes(), options);
  std::vector<double> g;
  const Reference reference;
  reference.gradient(x, label, &g);
  session.step({x, label});
  EXPECT_NEAR(session.state("bias").data<float>()[0], 0.125 - 0.05 * g[2], 1e-6);
  EXPECT_NEAR(session.state("weight").data<float>()[0], 0.5 - 0.1 * (g[0] + 0.5 * 0.5), 1e-6);
}

TEST(Groups, WithAnOptimizerOfTheirOwnAreFedItsNumbers) {
  for (const char* kind : {"sgd", "adam", "adamw", "lamb"}) {
    SCOPED_TRACE(kind);
    const bool sgd = std::string_view(kind) == "sgd";
    OptimizerOptions own{.kind = kind, .lr = 0.05};
    if (sgd) own.momentum = 0.9;
    TrainingOptions options{.loss = "mse", .optimizer = own};
    options.groups = {{.names = {"bias"}, .lr_multiplier = 7, .optimizer = own},
                      {.names = {"weight"}, .weight_decay = 7, .optimizer = own}};
    TrainingSession session = session_of(linear_bytes(), options);
    Reference reference;
    for (int t = 1; t <= kSteps; ++t) {
      own.lr = 0.05 / t;
      own.weight_decay = 0.01 * t;
      if (sgd) own.momentum = 0.9 - 0.02 * t, own.dampening = 0.01 * t;
      if (!sgd) own.beta1 = 0.9 - 0.02 * t;
      session.set_group(0, own);
      session.set_group(1, own);
      options.optimizer = own;
      const auto seed = static_cast<unsigned>(t);
      const Tensor x = random_tensor({kRows, 2}, seed),
                   label = random_tensor({kRows, 1}, seed + 100);
      EXPECT_NEAR(session.step({x, label}).loss, reference.step(options, t, x, label), 1e-5);
      EXPECT_NEAR(session.state("weight").data<float>()[0], reference.w[0], 2e-5) << "step " << t;
      EXPECT_NEAR(session.state("weight").data<float>()[1], reference.w[1], 2e-5) << "step " << t;
      EXPECT_NEAR(session.state("bias").data<float>()[0], reference.w[2], 2e-5) << "step " << t;
      EXPECT_EQ(session.state("step/bias").data<float>()[0], static_cast<float>(t));
    }
  }
}

TEST(Groups, CountByParameterAndScheduleTheirRates) {
  const Tensor x = random_tensor({kRows, 2}, 1), label = random_tensor({kRows, 1}, 2);
  const OptimizerOptions own{.kind = "adam", .lr = 0.1, .epsilon = 0};
  TrainingOptions options{.loss = "mse", .optimizer = own};
  options.schedule = {.kind = "linear", .warmup_steps = 4, .total_steps = 8};
  options.groups = {{.names = {"bias", "weight"}, .optimizer = own}};
  TrainingSession session = session_of(linear_bytes(), options);
  session.set_step_count(1);  // of the schedule: half of lr; the parameters' own counts stay 0
  session.step({x, label});
  // Adam's first step has length lr for any gradient
  EXPECT_NEAR(std::abs(session.state("bias").data<float>()[0] - 0.125), 0.05, 1e-6);
  session.set_optimizer_state({{"step/bias", Tensor::scalar(41.0F)}});
  session.step({x, label});
  EXPECT_EQ(session.optimizer_state().at("step/bias").data<float>()[0], 42);
  EXPECT_EQ(session.optimizer_state().at("step/weight").data<float>()[0], 2);
}

TEST(Optimizers, RefuseToLeaveMomentsUncorrectedWhereTheyCannot) {
  const OptimizerOptions o{.kind = "nadam", .bias_correction = false};
  EXPECT_THROW(session_of(linear_bytes(), {.loss = "mse", .optimizer = o}), ModelError);
}

TEST(Optimizers, RefuseSettingsOfOthers) {
  using O = OptimizerOptions;
  const std::pair<const char*, void (*)(O&)> settings[] = {
      {"sgd", [](O& o) { o.beta1 = 0.5; }},
      {"sgd", [](O& o) { o.epsilon = 1e-6; }},
      {"adamw", [](O& o) { o.momentum = 0.9; }},
      {"adam", [](O& o) { o.dampening = 0.1; }},
      {"adam", [](O& o) { o.momentum_decay = 0.1; }},
      {"lamb", [](O& o) { o.lr_decay = 0.1; }},
      {"adadelta", [](O& o) { o.alpha = 0.5; }},
      {"rmsprop", [](O& o) { o.rho = 0.5; }},
      {"adamax", [](O& o) { o.initial_accumulator_value = 1; }},
      {"adagrad", [](O& o) { o.beta2 = 0.5; }},
      {"adam", [](O& o) { o.beta2_decay = -0.5; }},
      {"radam", [](O& o) { o.clip_threshold = 2; }},
      {"adam", [](O& o) { o.epsilon2 = 0.1; }},
      {"adam", [](O& o) { o.ns_steps = 4; }},
      {"adam", [](O& o) { o.adjust_lr_fn = "original"; }},
  };
  for (const auto& [kind, change] : settings) {
    O options{.kind = kind};
    EXPECT_NO_THROW(check_optimizer(options)) << kind;
    change(options);
    EXPECT_THROW(check_optimizer(options), ModelError) << kind;
  }
  EXPECT_NO_THROW(check_optimizer({.kind = "adagrad", .initial_accumulator_value = 1}));
  EXPECT_NO_THROW(check_optimizer({.kind = "muon", .ns_steps = 4}));
  EXPECT_NO_THROW(check_optimizer({.kind = "adam", .momentum = 0, .nesterov = false}));
}

TEST(Optimizers, NameWhatMuonCannotUpdate) {
  const auto what = [](const TrainingOptions& options) -> std::string {
    try {
      session_of(linear_bytes(), options);
    } catch (const ModelError& error) {
      return error.what();
    }
    return "";
  };
  const OptimizerOptions muon{.kind = "muon"};
  EXPECT_NE(what({.loss = "mse", .optimizer = muon}).find("bias float32[1]"), std::string::npos);
  EXPECT_EQ(what({.loss = "mse", .groups = {{.names = {"weight"}, .optimizer = muon}}}), "");
  EXPECT_EQ(what({.loss = "mse", .frozen = {"bias"}, .optimizer = muon}), "");
}

TEST(Groups, RefuseAnotherIterationOfMuon) {
  const OptimizerOptions own{.kind = "muon"};
  TrainingSession session = session_of(
      linear_bytes(), {.loss = "mse", .groups = {{.names = {"weight"}, .optimizer = own}}});
  OptimizerOptions now = own;
  now.nesterov = true;  // the default
  now.momentum = 0;
  now.ns_coefficients = {2, -1.5, 0.5};
  session.set_group(0, now);
  EXPECT_THROW(session.set_group(0, {.kind = "muon", .nesterov = false}), ModelError);
  EXPECT_THROW(session.set_group(0, {.kind = "muon", .ns_steps = 4}), ModelError);
  EXPECT_THROW(session.set_group(0, {.kind = "muon", .adjust_lr_fn = "match_rms_adamw"}),
               ModelError);
}

TEST(Groups, RefuseWhatIsCompiledIn) {
  const OptimizerOptions own{.kind = "sgd", .lr = 0.1, .momentum = 0.9};
  TrainingOptions options{.loss = "mse"};
  options.groups = {{.names = {"bias"}, .optimizer = own}, {.names = {"weight"}}};
  TrainingSession session = session_of(linear_bytes(), options);
  auto changed = [&](auto change) {
    OptimizerOptions now = own;
    change(now);
    return now;
  };
  EXPECT_THROW(session.set_group(1, own), ModelError);  // it has no optimizer of its own
  EXPECT_THROW(session.set_group(2, own), ModelError);
  for (const OptimizerOptions& now :
       {changed([](auto& o) { o.kind = "adam"; }), changed([](auto& o) { o.nesterov = true; }),
        changed([](auto& o) { o.momentum = 0; }), changed([](auto& o) { o.lr = -1; })}) {
    EXPECT_THROW(session.set_group(0, now), ModelError);
  }
  EXPECT_EQ(session.options().groups[0].optimizer->momentum, 0.9);
}

}  // namespace
}  // namespace steep
