// ZeRO-1: processes, here threads, that divide the optimizer's states make the update of one
// process; what each keeps and sends; and what happens when one fails.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "parallel/divided.h"
#include "parallel/in_threads.h"
#include "steep/error.h"
#include "train/models.h"
#include "train/optimizer.h"

namespace steep {
namespace {

using testing::batch;
using testing::expect_near;
using testing::Folder;
using testing::in_threads;
using testing::matrices_bytes;
using testing::mlp_bytes;
using testing::Moments;
using testing::options_of;
using testing::same_tensors;
using testing::session_of;
using testing::share;
using testing::Weights;

size_t bytes_of(const Weights& tensors) {
  size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
  return bytes;
}

/// Three steps, on any number of processes and in one. The last step has fewer rows than processes.
void expect_one_process(const TrainingOptions& options, int zero) {
  const std::string bytes = matrices_bytes();
  auto alone = session_of(bytes, options);
  std::vector<StepResult> results;
  for (int i = 0; i < 3; ++i) results.push_back(alone.step(batch(i == 2 ? 2 : 7, i)));
  for (const int size : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(size);
    Moments moments;
    in_threads(size, [&](const std::shared_ptr<Peers>& peers) {
      TrainingOptions own = options;
      own.seed = static_cast<uint64_t>(peers->rank());
      auto session = session_of(bytes, own);
      if (peers->rank() > 0) session.state("w1").data<float>()[0] = 9;  // rank 0's counts
      DataParallel parallel(session, peers, {}, zero);
      for (int i = 0; i < 3; ++i) {
        const StepResult result =
            parallel.step(share(batch(i == 2 ? 2 : 7, i), peers->rank(), size));
        EXPECT_NEAR(result.loss, results[static_cast<size_t>(i)].loss, 1e-6);
        EXPECT_NEAR(result.grad_norm, results[static_cast<size_t>(i)].grad_norm, 1e-6);
        EXPECT_EQ(result.step, i + 1);
      }
      expect_near(session.weights(), alone.weights());
      moments.add(session.optimizer_state());
    });
    expect_near(alone.optimizer_state(), moments.all());
  }
}

TEST(DividedStates, MakeTheUpdateOfOneProcess) {
  // The last three read a whole tensor to update it.
  for (const char* kind : {"sgd", "adamw", "lamb", "muon", "adafactor"}) {
    SCOPED_TRACE(kind);
    for (const int zero : {1, 2}) expect_one_process(options_of(kind, 0.005), zero);
  }
  TrainingOptions smooth = options_of("adamw", 0.005);  // labels do not weigh
  smooth.label_smoothing = 0.1;
  smooth.check_finite = true;  // gradients are looked at before they are sent
  expect_one_process(smooth, 2);
}

/// Trains on two processes, with whole and with divided states: the same bits, since a sum of two
/// numbers has no order.
void expect_same_bits(const std::string& bytes, TrainingOptions options) {
  options.clip_norm = 0;  // the norm of all may be rounded otherwise
  Moments moments[2];
  Weights weights[2];
  for (const int zero : {0, 1}) {
    in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
      auto session = session_of(bytes, options);
      DataParallel parallel(session, peers, {}, zero);
      for (int i = 0; i < 3; ++i) {
        parallel.accumulate(share(batch(5, i), peers->rank(), 2));
        parallel.accumulate(share(batch(6, i), peers->rank(), 2));
        parallel.apply_gradients();
      }
      if (zero == 1 || peers->rank() == 0) moments[zero].add(session.optimizer_state());
      if (peers->rank() == 1) weights[zero] = session.weights();
    });
  }
  EXPECT_TRUE(same_tensors(weights[0], weights[1]));
  EXPECT_TRUE(same_tensors(moments[0].all(), moments[1].all()));
}

TEST(DividedStates, AreTheSameBitsAsWholeOnes) {
  for (const std::string& kind : built_in_optimizers()) {
    SCOPED_TRACE(kind);
    expect_same_bits(matrices_bytes(), options_of(kind));
  }
  TrainingOptions options = options_of("adamw");
  options.groups = {
      {.names = {"w1", "w3"}, .optimizer = OptimizerOptions{.kind = "muon", .lr = 0.02}},
      {.names = {"w4"}, .lr_multiplier = 0.5}};
  options.optimizer.state_precision = "int8";
  options.check_finite = true;
  expect_same_bits(matrices_bytes(1500), options);  // with random rounding
}

TEST(DividedStates, AreKeptOnceAndSentAsOftenAsOneSum) {
  const std::string bytes = matrices_bytes();
  const size_t parameters = bytes_of(session_of(bytes, options_of("adamw")).weights());
  const size_t most = size_t{5} * 9 * 4;  // of w3
  for (const std::pair<int, int>& form :
       std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {4, 1}, {2, 2}, {3, 2}, {4, 2}}) {
    const int size = form.first, zero = form.second;
    constexpr int kSteps = 3;
    std::atomic<size_t> total = 0, sums = 0;
    const size_t sent = in_threads(size, [&](const std::shared_ptr<Peers>& peers) {
      auto session = session_of(bytes, options_of("adamw"));
      const StepPlan before = session.plan(batch(4, 0));
      DataParallel parallel(session, peers, {}, zero);
      for (int i = 0; i < kSteps; ++i) parallel.step(batch(4, i));
      const size_t own = bytes_of(session.optimizer_state());
      EXPECT_LE(own, 2 * (parameters / static_cast<size_t>(size) + most));
      const StepPlan plan = session.plan(batch(4, 0));
      EXPECT_EQ(before.optimizer_bytes, 2 * parameters);
      EXPECT_EQ(plan.optimizer_bytes, own);
      total += own;
      sums += bytes_of(session.accumulated_gradients().sums);
    });
    EXPECT_EQ(total, 2 * parameters);
    EXPECT_EQ(sums, zero == 2 ? parameters : parameters * static_cast<size_t>(size));
    // The least that a sum over all processes sends: 2 · (size - 1) / size of the bytes by each.
    EXPECT_EQ(sent, 2 * static_cast<size_t>(size - 1) * parameters * kSteps);
  }
}

void expect_that_all_skip_and_fail(int zero) {
  TrainingOptions options = options_of("adamw");
  options.precision = "fp16";
  in_threads(3, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options);
    DataParallel parallel(session, peers, {}, zero);
    parallel.step(batch(4, peers->rank()));
    const Weights before = session.weights(), moments = session.optimizer_state();
    std::vector<Tensor> own = batch(1, 5);
    if (peers->rank() == 1) own[0] = Tensor::from(std::vector<float>{1000, 1000, 1000}, {1, 3});
    EXPECT_TRUE(parallel.step(own).skipped);
    EXPECT_EQ(session.loss_scale(), 32768);
    own = batch(4, peers->rank());
    if (peers->rank() == 2) own[1].data<int64_t>()[2] = 77;
    EXPECT_THROW(parallel.step(own), DataError);
    EXPECT_TRUE(same_tensors(session.weights(), before));
    EXPECT_TRUE(same_tensors(session.optimizer_state(), moments));
    EXPECT_EQ(parallel.step(batch(4, peers->rank())).step, 2);
  });
}

TEST(DividedStates, ASkipAndAnErrorAreThoseOfAll) {
  for (const int zero : {1, 2}) expect_that_all_skip_and_fail(zero);
}

TEST(DividedStates, AnUpdateThatIsNotFiniteIsAnErrorOfAll) {
  TrainingOptions options = options_of("sgd");
  options.check_finite = true;
  options.clip_norm = 0;
  const Folder folder;
  in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(matrices_bytes(), options);
    DataParallel parallel(session, peers, {}, 1);
    parallel.step(batch(4, 0));
    parallel.save_checkpoint(folder / "run");
    peers->agree("a file", {});
    for (const auto& moment : session.optimizer_state())
      session.state(moment.first).data<float>()[0] = 1e38F;
    session.set_lr(100);  // times this momentum, infinite in float32
    EXPECT_THROW(parallel.step(batch(4, 1)), DataError);
    EXPECT_THROW(session.weights(), DataError);
    EXPECT_EQ(session.step_count(), 1);
    session.load_checkpoint(folder / "run");
    EXPECT_EQ(parallel.step(batch(4, 1)).step, 2);
  });
}

TEST(DividedStates, WhatIsMissingIsSaid) {
  in_threads(2, [](const std::shared_ptr<Peers>& peers) {
    TrainingOptions averaged = options_of("adamw");
    averaged.ema_decay = 0.9;
    auto refused = session_of(mlp_bytes(false), averaged);
    EXPECT_THROW(DataParallel(refused, peers, {}, 1), ModelError);
    Weights averaged_state = refused.optimizer_state();
    std::erase_if(averaged_state, [](const auto& state) { return state.first.starts_with("ema"); });
    auto session = session_of(mlp_bytes(false), options_of("adamw"));
    EXPECT_THROW(DataParallel(session, peers, {}, 3), ModelError);
    DataParallel parallel(session, peers, {}, 1);
    EXPECT_THROW(DataParallel(session, peers, {}, 1), DataError);
    EXPECT_THROW(session.step(batch(4, 0)), DataError);
    EXPECT_NO_THROW(session.set_optimizer_state(session.optimizer_state()));
    EXPECT_THROW(session.set_optimizer_state(averaged_state), DataError);
    EXPECT_THROW(session.complete_update(), DataError);
    EXPECT_THROW(session.hold_states_of({}), DataError);
    session.accumulate(batch(4, 0));
    EXPECT_THROW(session.apply_gradients(), DataError);
    session.drop_gradients();
    const Folder folder;
    EXPECT_THROW(session.save_checkpoint(folder / "run"), DataError);
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
    int elsewhere = 0;
    for (const std::string& name : session.optimizer_state_names()) {
      try {
        EXPECT_TRUE(session.state(name).defined());
      } catch (const DataError& error) {
        EXPECT_EQ(error.parts().node, name);
        ++elsewhere;
      }
    }
    EXPECT_EQ(elsewhere, 4);  // of 8
    EXPECT_EQ(parallel.step(batch(4, 0)).step, 1);
    EXPECT_TRUE(session.eval(batch(4, 0)).loss);
  });
}

TEST(DividedStates, OnOneProcessOnlyAreFound) {
  in_threads(2, [](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of("adamw"));
    EXPECT_THROW(
        {
          DataParallel parallel(session, peers, {}, peers->rank());
          parallel.step(batch(4, 0));
        },
        ProviderError);
  });
}

TEST(DividedStates, ACheckpointOnOneProcessOnlyIsFound) {
  const Folder folder;
  auto alone = session_of(mlp_bytes(false), options_of("adamw"));
  alone.step(batch(4, 0));
  alone.save_checkpoint(folder / "run");
  in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of("adamw"));
    // Before the states are divided, rank 0's are copied.
    if (peers->rank() == 0) session.load_checkpoint(folder / "run");
    DataParallel parallel(session, peers, {}, 1);
    for (const auto& [name, moment] : session.optimizer_state()) {
      const Tensor expected = alone.state(name);
      EXPECT_EQ(std::memcmp(moment.data(), expected.data(), expected.nbytes()), 0) << name;
    }
    EXPECT_EQ(parallel.step(batch(4, 0)).step, 2);
    if (peers->rank() == 0) session.load_checkpoint(folder / "run");
    parallel.refresh();
    try {
      parallel.step(batch(4, 0));
      ADD_FAILURE() << "no error";
    } catch (const DataError& error) {
      EXPECT_EQ(error.parts().node, "rank 1");
    }
    session.load_checkpoint(folder / "run");
    parallel.refresh();
    EXPECT_EQ(parallel.step(batch(4, 0)).step, 2);
  });
}

TEST(DataParallel, TheScalesOfMomentsIn8BitsAreCopiedFromRank0) {
  const Folder folder;
  TrainingOptions options = options_of("adamw");
  options.optimizer.state_precision = "int8";
  const std::string bytes = matrices_bytes(1500);
  auto alone = session_of(bytes, options);
  alone.step(batch(4, 0));
  alone.save_checkpoint(folder / "run");
  alone.step(batch(4, 1));
  in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(bytes, options);
    if (peers->rank() == 0) session.load_checkpoint(folder / "run");
    DataParallel parallel(session, peers);
    parallel.step(batch(4, 1));
    expect_near(session.weights(), alone.weights());
  });
}

TEST(DividedStates, ALostProcessLeavesWeightsOfOneStepOrAnError) {
  // A step of two processes has two exchanges: the sum, and the copy of weights.
  for (const int good : {2, 3}) {
    testing::Room room(2);
    const auto work = [&](int rank) {
      const auto peers =
          std::make_shared<testing::FailingPeers>(room, rank, rank == 1 ? good : 1000);
      auto session = session_of(mlp_bytes(false), options_of("adamw"));
      DataParallel parallel(session, peers, {}, 1);
      parallel.step(batch(4, 0));
      const Weights before = session.weights();
      EXPECT_THROW(parallel.step(batch(4, 1)), PeerLostError);
      if (rank == 1) return room.leave(rank);
      EXPECT_THROW(parallel.step(batch(4, 1)), PeerLostError);
      EXPECT_THROW(parallel.gather_states(), PeerLostError);
      if (good == 2) {
        EXPECT_TRUE(same_tensors(session.weights(), before));
      } else {
        EXPECT_THROW(session.weights(), DataError);
      }
    };
    std::thread other([&] { work(1); });
    work(0);
    other.join();
  }
}

}  // namespace
}  // namespace steep
