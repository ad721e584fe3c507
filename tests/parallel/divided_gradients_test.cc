// ZeRO-2: gradients that go to their owners while backward runs: parts of a step, buckets, and what
// happens when a process fails in between.

#include "parallel/divided_gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "parallel/in_threads.h"
#include "steep/error.h"
#include "train/models.h"

namespace steep {
namespace {

using testing::batch;
using testing::in_threads;
using testing::mlp_bytes;
using testing::model_bytes;
using testing::options_of;
using testing::same_tensors;
using testing::session_of;
using Weights = std::map<std::string, Tensor>;

void expect_near(const Weights& one, const Weights& other) {
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, tensor] : one) {
    for (int64_t i = 0; i < tensor.size(); ++i) {
      ASSERT_NEAR(tensor.data<float>()[i], other.at(name).data<float>()[i], 1e-6) << name;
    }
  }
}

std::vector<Tensor> rows_between(const std::vector<Tensor>& all, int64_t begin, int64_t end) {
  std::vector<Tensor> own;
  for (const Tensor& array : all) own.push_back(steep::rows(array, begin, end));
  return own;
}

/// Two matrices of several buckets each, and biases; with a normalisation whose running statistics
/// backward writes.
std::string wide_bytes(bool normalises) {
  const auto values = [](int count, double scale) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(std::sin(0.7 * i) * scale);
    }
    return text;
  };
  const std::string norm = R"(
      scale = Constant <value = float[5] {1, 1, 1, 1, 1}> ()
      n, m2, v2 = BatchNormalization <training_mode = 1> (b, scale, b1, mean, variance) )";
  return model_bytes("g (float[rows, 3] x) => (float[rows, 4] logits) <float[3, 5] w0 = {" +
                     values(15, 0.5) + "}, float[5] b1 = {" + values(5, 0.1) +
                     "}, float[5] mean = {0, 0, 0, 0, 0}, float[5] variance = {1, 1, 1, 1, 1}, "
                     "float[5, 4] w1 = {" +
                     values(20, 0.5) + "}> { b = MatMul(x, w0) " +
                     (normalises ? norm : " n = Add(b, b1) ") + " logits = MatMul(n, w1) }");
}

TEST(DividedGradients, OfSeveralPartsAreAddedUp) {
  TrainingOptions options = options_of("adamw");
  for (const double smoothing : {0.0, 0.1}) {
    options.label_smoothing = smoothing;
    auto alone = session_of(mlp_bytes(false), options);
    for (int i = 0; i < 3; ++i) {
      alone.accumulate(batch(6, i));
      alone.accumulate(batch(6, i + 10));
      alone.apply_gradients();
    }
    for (const bool names_rows : {false, true}) {
      in_threads(3, [&](const std::shared_ptr<Peers>& peers) {
        auto session = session_of(mlp_bytes(false), options);
        DataParallel parallel(session, peers, {}, 2);
        for (int i = 0; i < 3; ++i) {
          // The last process has rows in the second part only, the first in the first only.
          const int64_t first = peers->rank() == 2 ? 6 : 3 * peers->rank();
          const int64_t second = peers->rank() == 0 ? 0 : 3 * (peers->rank() - 1);
          const int64_t more = peers->rank() == 0 ? 0 : 3;
          parallel.accumulate(rows_between(batch(6, i), first, peers->rank() == 2 ? 6 : first + 3),
                              names_rows ? 6 : 0);
          parallel.accumulate(rows_between(batch(6, i + 10), second, second + more),
                              names_rows ? 6 : 0);
          EXPECT_EQ(parallel.accumulated(), 2);
          EXPECT_EQ(parallel.apply_gradients().step, i + 1);
        }
        expect_near(session.weights(), alone.weights());
      });
    }
  }
}

TEST(DividedGradients, AnErrorInAPartDropsAllParts) {
  in_threads(2, [](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(wide_bytes(true), options_of("adamw"));
    DataParallel parallel(session, peers, {}, 2);
    parallel.step(batch(4, peers->rank()));
    Weights before = session.weights();
    for (const std::string& name : session.statistic_names())
      before[name] = session.state(name).clone();
    EXPECT_EQ(session.statistic_names().size(), 2u);
    parallel.accumulate(batch(4, peers->rank()));
    std::vector<Tensor> wrong = batch(4, 7);
    if (peers->rank() == 1) wrong[1].data<int64_t>()[2] = 77;
    try {
      parallel.accumulate(wrong);
      ADD_FAILURE() << "no error";
    } catch (const DataError& error) {
      EXPECT_EQ(error.parts().node == "rank 1", peers->rank() == 0) << error.what();
    }
    EXPECT_EQ(parallel.accumulated(), 0);
    Weights after = session.weights();
    for (const std::string& name : session.statistic_names()) after[name] = session.state(name);
    EXPECT_TRUE(same_tensors(before, after));
    EXPECT_EQ(parallel.step(batch(4, peers->rank())).step, 2);
  });
}

TEST(DividedGradients, DifferentCallsAreAnErrorOfAll) {
  in_threads(2, [](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of("adamw"));
    DataParallel parallel(session, peers, {}, 2);
    parallel.accumulate(batch(4, 0));
    if (peers->rank() == 0) {
      EXPECT_THROW(parallel.accumulate(batch(4, 0)), ProviderError);
    } else {
      EXPECT_THROW(parallel.apply_gradients(), ProviderError);
    }
    EXPECT_EQ(parallel.step(batch(4, 0)).step, 1);
  });
}

TEST(DividedGradients, InHalfTheBytesAreWithinTheirBound) {
  const TrainingOptions options = options_of("sgd", 0.01);
  auto alone = session_of(mlp_bytes(false), options);
  alone.step(batch(6, 0));
  size_t sent[2];
  for (const bool narrow : {false, true}) {
    sent[narrow ? 1 : 0] = in_threads(3, [&](const std::shared_ptr<Peers>& peers) {
      auto session = session_of(mlp_bytes(false), options);
      DataParallel parallel(session, peers, {}, 2, narrow ? "bfloat16" : "float32");
      const int64_t first = int64_t{2} * peers->rank();
      parallel.step(rows_between(batch(6, 0), first, first + 2));
      for (const auto& [name, weight] : session.weights()) {
        for (int64_t i = 0; i < weight.size(); ++i) {
          EXPECT_NEAR(weight.data<float>()[i], alone.state(name).data<float>()[i],
                      narrow ? 1e-4 : 1e-6);
        }
      }
    });
  }
  EXPECT_EQ(4 * sent[1], 3 * sent[0]);  // gradients are half of what is sent
}

TEST(DividedGradients, OfAProcessThatIsLostLeaveTheWeights) {
  testing::Room room(2);
  const auto work = [&](int rank) {
    const auto peers = std::make_shared<testing::FailingPeers>(room, rank, rank == 1 ? 2 : 1000);
    auto session = session_of(wide_bytes(true), options_of("adamw"));
    DataParallel parallel(session, peers, {}, 2);
    parallel.step(batch(4, 0));  // two exchanges: the sum, and the copy of weights
    const Weights before = session.weights();
    EXPECT_THROW(parallel.step(batch(4, 1)), PeerLostError);
    EXPECT_TRUE(same_tensors(session.weights(), before));
    if (rank == 1) return room.leave(rank);
    EXPECT_THROW(parallel.step(batch(4, 1)), PeerLostError);
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
}

TEST(DividedGradients, AreSentInTheSameOrderByAll) {
  // Buckets of one or two parameters; each process has its gradients in another order.
  const TrainingSession session = session_of(mlp_bytes(false), options_of("adamw"));
  const std::vector<std::vector<std::string>> shares{{"w0"}, {"b0", "w1"}, {"b1"}};
  in_threads(3, [&](const std::shared_ptr<Peers>& peers) {
    const auto rank = static_cast<size_t>(peers->rank());
    DividedGradients gradients(peers, shares, session, DType::f32, 40);
    Weights sums;
    for (const std::string& name : shares[rank])
      sums[name] = testing::random_tensor(session.state(name).dims(), 1);  // from a step before
    std::vector<std::string> names = session.parameter_names();
    for (int part = 0; part < 2; ++part) {
      gradients.begin(sums, part == 0, part + 1);
      std::rotate(names.begin(), names.begin() + static_cast<ptrdiff_t>(rank), names.end());
      for (const std::string& name : names) {
        if (rank == 2 && name == "w1") continue;  // as 0
        Tensor gradient = Tensor::empty(DType::f32, session.state(name).dims());
        for (int64_t i = 0; i < gradient.size(); ++i)
          gradient.data<float>()[i] = static_cast<float>(i) + static_cast<float>(rank) * 100;
        gradients.take(name, gradient);
      }
      gradients.end();
    }
    for (const auto& [name, sum] : sums) {
      const float others = name == "w1" ? 2 : 3, ranks = name == "w1" ? 100 : 300;
      for (int64_t i = 0; i < sum.size(); ++i) {
        EXPECT_EQ(sum.data<float>()[i], 3 * (static_cast<float>(i) * others + ranks)) << name;
      }
    }
  });
}

TEST(DividedGradients, AnotherDivisionOnOneProcessIsFound) {
  in_threads(2, [](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of("adamw"));
    try {
      DataParallel(session, peers, {}, 1 + peers->rank());
      ADD_FAILURE() << "no error";
    } catch (const ModelError& error) {
      EXPECT_EQ(error.parts().node, "rank 1: option zero");
    }
  });
}

}  // namespace
}  // namespace steep
