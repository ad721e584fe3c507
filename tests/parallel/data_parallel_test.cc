// Data-parallel training: processes, here threads, that divide the rows of a step make the update
// of one process with all rows; and what they do when one of them fails or differs.

#include <gtest/gtest.h>

#include <cmath>

#include "parallel/in_threads.h"
#include "steep/error.h"
#include "train/models.h"

namespace steep {
namespace {

using testing::batch;
using testing::in_threads;
using testing::mlp_bytes;
using testing::options_of;
using testing::same_tensors;
using testing::session_of;
using Weights = std::map<std::string, Tensor>;

/// The rows of one of several processes: the first has most, and the last may have none.
std::vector<Tensor> share(const std::vector<Tensor>& all, int rank, int size) {
  const int64_t rows = all[0].dims()[0];
  const auto begin_of = [&](int r) { return r == 0 ? 0 : std::min<int64_t>(rows, 2 + r); };
  const int64_t end = rank + 1 == size ? rows : begin_of(rank + 1);
  std::vector<Tensor> own;
  for (const Tensor& array : all)
    own.push_back(rows == 0 ? array : steep::rows(array, begin_of(rank), end));
  return own;
}

std::vector<Tensor> rows_between(const std::vector<Tensor>& all, int64_t begin, int64_t end) {
  std::vector<Tensor> own;
  for (const Tensor& array : all) own.push_back(steep::rows(array, begin, end));
  return own;
}

void expect_near(const Weights& one, const Weights& other) {
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, tensor] : one) {
    for (int64_t i = 0; i < tensor.size(); ++i) {
      ASSERT_NEAR(tensor.data<float>()[i], other.at(name).data<float>()[i], 1e-6) << name;
    }
  }
}

TEST(DataParallel, UnevenSharesMakeTheUpdateOfTheWholeBatch) {
  for (const TrainingOptions& options : {options_of("sgd"), options_of("adamw"), [] {
                                           TrainingOptions o = options_of("adam");
                                           o.ignore_index = 1;
                                           o.class_weights = {1, 2, 0.5, 3};
                                           return o;
                                         }()}) {
    auto alone = session_of(mlp_bytes(false), options);
    std::vector<double> losses;
    for (int i = 0; i < 4; ++i) losses.push_back(alone.step(batch(i == 3 ? 2 : 7, i)).loss);
    for (const int size : {1, 2, 3}) {
      in_threads(size, [&](const std::shared_ptr<Peers>& peers) {
        TrainingOptions own = options;
        own.seed = static_cast<uint64_t>(peers->rank());  // rank 0's counts
        auto session = session_of(mlp_bytes(false), own);
        if (peers->rank() > 0) session.state("w1").data<float>()[0] = 9;  // and its weights
        DataParallel parallel(session, peers);
        for (int i = 0; i < 4; ++i) {
          const StepResult result =
              parallel.step(share(batch(i == 3 ? 2 : 7, i), peers->rank(), size));
          EXPECT_NEAR(result.loss, losses[static_cast<size_t>(i)], 1e-6);
          EXPECT_EQ(result.step, i + 1);
        }
        expect_near(session.weights(), alone.weights());
        EXPECT_EQ(session.options().seed, size == 1 ? own.seed : 0);
      });
    }
  }
}

TEST(DataParallel, PartsOfAStepWeighAsInOneProcess) {
  auto alone = session_of(mlp_bytes(false), options_of("sgd"));
  const int64_t rows[] = {7, 7, 2};
  for (int i = 0; i < 3; ++i) alone.accumulate(batch(rows[i], i));
  const double loss = alone.apply_gradients().loss;
  in_threads(3, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of("sgd"));
    DataParallel parallel(session, peers);
    for (int i = 0; i < 3; ++i) {
      parallel.accumulate(share(batch(rows[i], i), peers->rank(), 3), rows[i]);
    }
    EXPECT_EQ(parallel.accumulated(), 3);
    EXPECT_NEAR(parallel.apply_gradients().loss, loss, 1e-6);
    EXPECT_EQ(parallel.accumulated(), 0);
    expect_near(session.weights(), alone.weights());
  });
}

TEST(DataParallel, PartsOfOneProcessWeighAsTheirRows) {
  auto alone = session_of(mlp_bytes(false), options_of("sgd"));
  const double loss = alone.step(batch(12, 0)).loss;
  const std::vector<std::vector<int64_t>> ends = {{0, 1, 5}, {5, 7}, {7, 8, 8, 12}};
  for (const int zero : {0, 1, 2}) {
    in_threads(3, [&](const std::shared_ptr<Peers>& peers) {
      auto session = session_of(mlp_bytes(false), options_of("sgd"));
      DataParallel parallel(session, peers, {}, zero);
      std::vector<int64_t> own = ends[static_cast<size_t>(peers->rank())];
      if (zero == 2) own.resize(4, own.back());  // equally many parts, some without rows
      for (size_t i = 1; i < own.size(); ++i) {
        parallel.accumulate(rows_between(batch(12, 0), own[i - 1], own[i]));
      }
      EXPECT_NEAR(parallel.apply_gradients().loss, loss, 1e-6) << "zero " << zero;
      expect_near(session.weights(), alone.weights());
    });
  }
}

TEST(DataParallel, ARankWithoutPartsIsAnErrorOfAll) {
  in_threads(2, [](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of());
    DataParallel parallel(session, peers);
    EXPECT_THROW(parallel.apply_gradients(), DataError);  // on both
    if (peers->rank() == 0) {
      EXPECT_THROW(parallel.accumulate(batch(4, 0)), DataError);
    } else {
      EXPECT_THROW(parallel.apply_gradients(), DataError);
    }
    EXPECT_EQ(parallel.accumulated(), 0);
    EXPECT_EQ(parallel.step(batch(4, 0)).step, 1);
  });
}

TEST(DataParallel, AStepWithoutRowsIsAnErrorOfAll) {
  in_threads(2, [](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of());
    DataParallel parallel(session, peers);
    const Weights before = session.weights();
    EXPECT_THROW(parallel.step({}), DataError);
    EXPECT_FALSE(parallel.step_if_any(std::vector<Tensor>{}));
    EXPECT_TRUE(same_tensors(session.weights(), before));
    EXPECT_EQ(parallel.step(batch(4, 0)).step, 1);
  });
}

TEST(DataParallel, AnErrorOfOneIsAnErrorOfAllAndTrainingGoesOn) {
  in_threads(3, [](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of());
    DataParallel parallel(session, peers);
    parallel.step(batch(4, peers->rank()));
    const Weights before = session.weights();
    const Weights moments = session.optimizer_state();
    std::vector<Tensor> wrong = batch(4, peers->rank());
    if (peers->rank() == 1) wrong[1].data<int64_t>()[2] = 77;
    try {
      parallel.step(wrong);
      ADD_FAILURE() << "no error";
    } catch (const DataError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("77"), std::string::npos) << text;
      const bool own = text.find("Rank 1 failed") == std::string::npos;
      EXPECT_EQ(own, peers->rank() == 1) << text;
      EXPECT_TRUE(peers->failed_together());
    }
    EXPECT_TRUE(same_tensors(session.weights(), before));
    EXPECT_TRUE(same_tensors(session.optimizer_state(), moments));
    EXPECT_EQ(parallel.step(batch(4, peers->rank())).step, 2);
  });
}

TEST(DataParallel, AnOverflowOfOneIsASkipOfAll) {
  TrainingOptions options = options_of();
  options.precision = "fp16";
  options.clip_norm = 0;
  in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options);
    DataParallel parallel(session, peers);
    parallel.step(batch(4, peers->rank()));
    const Weights before = session.weights();
    std::vector<Tensor> own = batch(1, 5);
    if (peers->rank() == 1) {
      own = {Tensor::from(std::vector<float>{1000, 1000, 1000}, {1, 3}),
             Tensor::from(std::vector<int64_t>{2}, {1})};
    }
    const StepResult result = parallel.step(own);
    EXPECT_TRUE(result.skipped);
    EXPECT_EQ(result.loss_scale, 65536);
    EXPECT_EQ(session.loss_scale(), 32768);
    EXPECT_EQ(session.step_count(), 1);
    EXPECT_TRUE(same_tensors(session.weights(), before));
    EXPECT_FALSE(parallel.step(batch(4, peers->rank())).skipped);
  });
}

void expect_refused(const std::function<void(DataParallel&, TrainingSession&, int)>& change,
                    const std::string& part, bool model) {
  in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
    TrainingOptions options = options_of();
    if (model && peers->rank() == 1) options.clip_norm = 0.25;
    auto session = session_of(mlp_bytes(false), options);
    DataParallel parallel(session, peers);
    if (change) parallel.step(batch(4, 0));
    if (change) change(parallel, session, peers->rank());
    const Weights before = session.weights();
    try {
      parallel.step(batch(4, 0));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find(part), std::string::npos) << text;
      EXPECT_EQ(dynamic_cast<const ModelError*>(&error) != nullptr, model);
    }
    EXPECT_TRUE(same_tensors(session.weights(), before));
  });
}

TEST(DataParallel, AnotherOptionIsFoundBeforeTheFirstStep) {
  expect_refused(nullptr, "option clip_norm", true);
}

TEST(DataParallel, AFactMayBeAnyBytes) {
  in_threads(2, [](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of());
    DataParallel same(session, peers, {{"name\xfe", "\xff"}});
    EXPECT_EQ(same.step(batch(4, 0)).step, 1);
    DataParallel other(session, peers, {{"data", peers->rank() == 1 ? "\xff" : "\xfe"}});
    try {
      other.step(batch(4, 0));
      ADD_FAILURE() << "no error";
    } catch (const ModelError& error) {
      EXPECT_EQ(error.parts().node, "rank 1: data");
      EXPECT_EQ(error.parts().received, "\\xff");
    }
  });
}

TEST(DataParallel, AnotherRateOrCountIsFoundAtItsStep) {
  expect_refused([](DataParallel&, TrainingSession& session,
                    int rank) { session.set_lr(rank == 1 ? 0.5 : 0.05); },
                 "learning rate", false);
  expect_refused([](DataParallel&, TrainingSession& session,
                    int rank) { session.set_step_count(rank == 1 ? 9 : 1); },
                 "9", false);
}

TEST(DataParallel, OtherCallsAreFound) {
  in_threads(2, [](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of());
    DataParallel parallel(session, peers);
    EXPECT_THROW(
        peers->rank() == 0 ? void(parallel.step(batch(4, 0))) : void(peers->agree("a sum", {})),
        ProviderError);
  });
}

TEST(DataParallel, ALostProcessIsNamedAndNoWeightChanges) {
  try {
    in_threads(2, [](const std::shared_ptr<Peers>& peers) {
      auto session = session_of(mlp_bytes(false), options_of());
      DataParallel parallel(session, peers);
      parallel.step(batch(4, 0));
      if (peers->rank() == 1) throw std::runtime_error("killed");
      const Weights before = session.weights();
      for (int i = 0; i < 2; ++i) {
        try {
          parallel.step(batch(4, 0));
          ADD_FAILURE() << "no error";
        } catch (const PeerLostError& error) {
          EXPECT_NE(std::string(error.what()).find("rank 1 was killed"), std::string::npos);
        }
      }
      EXPECT_TRUE(same_tensors(session.weights(), before));
    });
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "killed");
  }
}

}  // namespace
}  // namespace steep
