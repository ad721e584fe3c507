// Errors and permitted calls of a session whose update was interrupted.
#include <gtest/gtest.h>

#include <functional>

#include "ops/build.h"
#include "sessions/training_impl.h"
#include "steep/error.h"
#include "train/models.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

using testing::linear_bytes;

constexpr int64_t kGoodSteps = 2;

TrainingOptions options() {
  const OptimizerOptions adam{.kind = "adam", .lr = 0.1};
  TrainingOptions made{.loss = "mse", .optimizer = adam};
  made.groups = {{.names = {"bias"}, .optimizer = adam}};
  return made;
}

class Whole : public testing::TempFolder {
 protected:
  /// A session whose step, from the third one on, fails at a lookup in the backward phase.
  void fail_later(bool after_updates) {
    impl = std::make_unique<TrainingSession::Impl>(linear_bytes(), folder(), options());
    Graph g = step_graph(impl->model, impl->options);
    {
      const Graph::Scope scope(g, Phase::backward, "late");
      Value at = g.find(kStepInput);
      for (const Update& u : g.updates()) {
        if (after_updates) at = at + cast(mean(u.value, {}, false) * 0.0, DType::i64);
      }
      const Value table = g.add_constant(Tensor::from<float>({1, 2, 3}, {kGoodSteps + 1}));
      const Value found = apply("Gather", {table, at});
      if (after_updates) {
        g.add_output("found", found, Phase::backward);
      } else {
        std::vector<Update> updates = g.updates();
        for (Update& u : updates) u.value = u.value + found * 0.0;
        g.set_updates(std::move(updates));
      }
    }
    late = std::make_unique<Program>(std::move(g));
    for (Value s : late->graph().states())
      late->bind_state(s.name(), impl->programs.states.at(s.name()));
    impl->program = late.get();
    for (int i = 0; i < kGoodSteps; ++i) impl->step(batch());
  }

  static std::vector<Tensor> batch() {
    return {Tensor::from<float>({1, 2, 3, 4}, {2, 2}), Tensor::from<float>({1, 0}, {2, 1})};
  }

  std::string refusal(const std::function<void()>& f) {
    try {
      f();
    } catch (const DataError& e) {
      return e.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }

  std::unique_ptr<TrainingSession::Impl> impl;
  std::unique_ptr<Program> late;  // the step that fails
};

TEST_F(Whole, AFailureAfterTheFirstUpdateIsRemembered) {
  fail_later(true);
  const auto before = impl->programs.states.at("weight").clone();
  EXPECT_THROW(impl->step(batch()), Error);
  EXPECT_NE(*impl->programs.states.at("weight").data<float>(), *before.data<float>());
  EXPECT_EQ(impl->steps, kGoodSteps);
  const std::string text = refusal([&] { impl->step(batch()); });
  EXPECT_NE(text.find("inconsistent: the update of step 3"), std::string::npos) << text;
  EXPECT_NE(text.find("Load a checkpoint"), std::string::npos) << text;
  refusal([&] { impl->eval(batch()); });
  refusal([&] { impl->gradients(batch(), nullptr); });
}

TEST_F(Whole, AllStatesTogetherHeal) {
  fail_later(true);
  const auto weights = impl->shared(impl->model.parameters);
  const auto moments = impl->shared(impl->optimizer_states());
  EXPECT_THROW(impl->step(batch()), Error);
  impl->assign(weights, impl->model.parameters, "trained parameter");
  refusal([&] { impl->eval(batch()); });  // the moments are still inconsistent
  impl->assign(moments, impl->optimizer_states(), "optimizer moment");
  EXPECT_NO_THROW(impl->eval(batch()));
}

TEST_F(Whole, AFailureBeforeTheFirstUpdateLeavesNoTrace) {
  fail_later(false);
  const auto weight = impl->programs.states.at("weight").clone();
  const uint64_t runs = impl->program->run_count();
  EXPECT_THROW(impl->step(batch()), Error);
  EXPECT_EQ(*impl->programs.states.at("weight").data<float>(), *weight.data<float>());
  EXPECT_EQ(impl->program->run_count(), runs);
  EXPECT_EQ(*impl->programs.states.at("step/bias").data<float>(), kGoodSteps);
  EXPECT_NO_THROW(impl->eval(batch()));
}

TEST_F(Whole, PartsThatAnErrorHasSpoiltAreNotApplied) {
  impl = std::make_unique<TrainingSession::Impl>(linear_bytes(), folder(), options());
  const Tensor parts = impl->programs.states["parts"] = Tensor::zeros(DType::i64, {});
  impl->programs.get(TrainingSession::Impl::Kind::accumulation, [&] {
    bool weighs = false;
    Graph g = accumulation_graph(impl->model, impl->options, &weighs);
    const Graph::Scope scope(g, Phase::backward, "late");
    const Value part = g.add_state("parts", {DType::i64, Shape{}});
    Value at = part;
    for (const Update& u : std::vector<Update>(g.updates()))
      at = at + cast(mean(u.value, {}, false) * 0.0, DType::i64);
    const Value table = g.add_constant(Tensor::from<float>({1, 2}, {2}));
    g.add_output("found", apply("Gather", {table, at}), Phase::backward);
    for (Value state : g.states()) {
      Tensor& bytes = impl->programs.states[state.name()];
      if (!bytes.defined()) bytes = Tensor::zeros(state.dtype(), state.type().dims());
    }
    return g;
  });
  const auto part = [&](int64_t number) {
    *Tensor(parts).data<int64_t>() = number;
    impl->accumulate(batch());
  };
  part(0);
  part(1);
  EXPECT_THROW(part(2), Error);
  part(0);
  const std::string text = refusal([&] { impl->apply_gradients(); });
  EXPECT_NE(text.find("2 parts lost, 1 since"), std::string::npos) << text;
  impl->accumulated = {};  // drop_gradients()
  part(0);
  EXPECT_NO_THROW(impl->apply_gradients());
}

}  // namespace
}  // namespace steep
