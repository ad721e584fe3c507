// Gradients on their way between processes, here threads: in bfloat16 they are half the bytes, are
// rounded within a bound, and give all processes the same bits; parts of a step are sent once.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "parallel/in_threads.h"
#include "steep/error.h"
#include "train/models.h"

namespace steep {
namespace {

using testing::batch;
using testing::in_threads;
using testing::mlp_bytes;
using testing::options_of;
using testing::random_tensor;
using testing::same_tensors;
using testing::session_of;
using Weights = std::map<std::string, Tensor>;

const char* const kNarrow = "bfloat16";

size_t bytes_of(const Weights& tensors) {
  size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
  return bytes;
}

/// What each rank has, all of which must have the same bits.
class Same {
 public:
  void add(Weights own) {
    const std::lock_guard lock(mutex_);
    if (all_.empty())
      all_ = std::move(own);
    else
      EXPECT_TRUE(same_tensors(all_, own));
  }
  const Weights& get() const { return all_; }

 private:
  std::mutex mutex_;
  Weights all_;
};

Weights copies(const Weights& tensors) {
  Weights result;
  for (const auto& [name, tensor] : tensors) result[name] = tensor.clone();
  return result;
}

/// Of `size` processes. The largest error of a sum is `bound` times the sum of the magnitudes.
void sum_over(int size, DType wire, double bound) {
  // The second is larger than a message of 4 MiB, the third than no process's part.
  const std::vector<Dims> dims{{5}, {3, 1'000'003}, {1}, {0}, {17, 2}};
  const auto values = [&](int rank, size_t i) {
    return random_tensor(dims[i], static_cast<unsigned>(10 * i) + static_cast<unsigned>(rank));
  };
  Same same;
  const size_t sent = in_threads(size, [&](const std::shared_ptr<Peers>& peers) {
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < dims.size(); ++i) tensors.push_back(values(peers->rank(), i));
    peers->add(tensors, 0.5, wire);
    Weights named;
    for (size_t i = 0; i < dims.size(); ++i) named[std::to_string(i)] = tensors[i];
    same.add(named);
  });
  size_t count = 0;
  for (size_t i = 0; i < dims.size(); ++i) {
    std::vector<Tensor> parts;
    for (int rank = 0; rank < size; ++rank) parts.push_back(values(rank, i));
    const Tensor& found = same.get().at(std::to_string(i));
    count += static_cast<size_t>(found.size());
    for (int64_t k = 0; k < found.size(); ++k) {
      double sum = 0, magnitudes = 0;
      for (const Tensor& part : parts) {
        sum += 0.5 * part.data<float>()[k];
        magnitudes += 0.5 * std::abs(part.data<float>()[k]);
      }
      ASSERT_LE(std::abs(found.data<float>()[k] - sum), magnitudes * bound) << i << " " << k;
    }
  }
  // Two bytes for each number, once to its owner and once from it.
  if (wire == DType::bf16) {
    EXPECT_EQ(sent, static_cast<size_t>(2 * (size - 1)) * 2 * count);
  }
}

TEST(WirePrecision, SumsAreWithinTheBoundAndTheSameBitsEverywhere) {
  for (const int size : {1, 2, 3, 7}) {
    SCOPED_TRACE(size);
    sum_over(size, DType::bf16, 1.0 / 128);
    sum_over(size, DType::f32, 1e-6);
  }
}

TEST(WirePrecision, WhatIsNotFiniteArrivesAndFloat64IsNotRounded) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  in_threads(3, [&](const std::shared_ptr<Peers>& peers) {
    const bool second = peers->rank() == 1;
    const std::vector<Tensor> tensors{
        Tensor::from({second ? std::nanf("") : 1.0F, second ? kInfinity : 1.0F, 1.0F, 1e-40F}, {4}),
        Tensor::from({0.1, 1.0 + 1e-12}, {2})};
    peers->add(tensors, 1, DType::bf16);
    const auto* sums = tensors[0].data<float>();
    EXPECT_TRUE(std::isnan(sums[0]));
    EXPECT_EQ(sums[1], kInfinity);
    EXPECT_EQ(sums[2], 3);
    EXPECT_NEAR(sums[3], 3e-40F, 3e-40F / 8);
    EXPECT_NEAR(tensors[1].data<double>()[1], 3 + 3e-12, 1e-15);
  });
}

TEST(WirePrecision, ProcessesHaveTheSameWeightsNearThoseOfFloat32) {
  for (const char* kind : {"sgd", "adamw", "lamb"}) {
    for (const int zero : {0, 1}) {
      for (const int size : {2, 3, 4}) {
        SCOPED_TRACE(std::string(kind) + " zero " + std::to_string(zero) + " on " +
                     std::to_string(size));
        Same wide, narrow;
        for (const bool narrows : {false, true}) {
          in_threads(size, [&](const std::shared_ptr<Peers>& peers) {
            auto session = session_of(mlp_bytes(false), options_of(kind));
            DataParallel parallel(session, peers, {}, zero, narrows ? kNarrow : "float32");
            for (int i = 0; i < 5; ++i) parallel.step(batch(2 + peers->rank(), i + peers->rank()));
            (narrows ? narrow : wide).add(copies(session.weights()));
          });
        }
        EXPECT_FALSE(same_tensors(wide.get(), narrow.get()));
        if (kind != std::string("sgd")) continue;  // the others divide by gradients near 0
        for (const auto& [name, tensor] : wide.get()) {
          for (int64_t i = 0; i < tensor.size(); ++i) {
            EXPECT_NEAR(tensor.data<float>()[i], narrow.get().at(name).data<float>()[i], 0.02);
          }
        }
      }
    }
  }
}

/// Counts the bytes of sums, too: the least that each of them takes.
class Counting : public testing::ThreadPeers {
 public:
  using ThreadPeers::ThreadPeers;
  size_t summed() const { return summed_; }

 protected:
  void sum(float* values, size_t count) override {
    summed_ += 2 * static_cast<size_t>(size() - 1) * count * sizeof(float);
    ThreadPeers::sum(values, count);
  }

 private:
  size_t summed_ = 0;
};

/// The bytes that three threads send in two steps of so many parts, rounds of agreement aside.
size_t sent_by_three(int parts, int zero, const std::string& precision) {
  testing::Room room(3);
  std::atomic<size_t> summed = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto peers = std::make_shared<Counting>(room, rank);
      auto session = session_of(mlp_bytes(false), options_of("adamw"));
      DataParallel parallel(session, peers, {}, zero, precision);
      for (int step = 0; step < 2; ++step) {
        for (int i = 0; i < parts; ++i) parallel.accumulate(batch(2 + i, i + rank));
        parallel.apply_gradients();
      }
      if (rank == 0) summed += peers->summed();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return room.sent() + summed;
}

TEST(WirePrecision, PartsOfAStepAreSentOnceAndHalfInBfloat16) {
  const size_t parameters =
      bytes_of(session_of(mlp_bytes(false), options_of("adamw")).weights()) * 2;  // two steps
  for (const int parts : {1, 5}) {
    SCOPED_TRACE(parts);
    EXPECT_EQ(sent_by_three(parts, 0, "float32"), 4 * parameters);
    EXPECT_EQ(sent_by_three(parts, 0, kNarrow), 2 * parameters);
    EXPECT_EQ(sent_by_three(parts, 1, "float32"), 4 * parameters);
    EXPECT_EQ(sent_by_three(parts, 1, kNarrow), 3 * parameters);  // weights stay float32
  }
}

TEST(WirePrecision, OnOneProcessOnlyIsFoundBeforeTheFirstStep) {
  for (const int zero : {0, 1}) {
    in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
      auto session = session_of(mlp_bytes(false), options_of("adamw"));
      const Weights before = copies(session.weights());
      try {
        DataParallel parallel(session, peers, {}, zero, peers->rank() == 1 ? kNarrow : "float32");
        parallel.step(batch(4, 0));
        ADD_FAILURE() << "no error";
      } catch (const ModelError& error) {
        EXPECT_EQ(error.parts().node, "rank 1: option wire_precision");
        EXPECT_EQ(error.parts().received, kNarrow);
      }
      EXPECT_TRUE(same_tensors(session.weights(), before));
    });
  }
}

/// Peers of an application that has not written exchange().
class WithoutExchange : public testing::ThreadPeers {
 public:
  using ThreadPeers::ThreadPeers;
  bool exchanges() const override { return false; }
};

TEST(WirePrecision, WhatIsMissingIsSaid) {
  auto session = session_of(mlp_bytes(false), options_of("adamw"));
  testing::Room room(2);
  const auto peers = std::make_shared<WithoutExchange>(room, 0);
  EXPECT_THROW(DataParallel(session, peers, {}, 0, "float16"), ModelError);
  EXPECT_THROW(DataParallel(session, peers, {}, 0, kNarrow), ProviderError);
}

}  // namespace
}  // namespace steep
