// Gradients that are added up over processes while backward runs: when they leave, in which order,
// and what a trace shows of it.

#include "parallel/early_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <thread>

#include "parallel/divided.h"
#include "parallel/in_threads.h"
#include "steep/error.h"
#include "train/models.h"

namespace steep {
namespace {

using testing::batch;
using testing::in_threads;
using testing::mlp_bytes;
using testing::options_of;
using testing::session_of;
using Weights = std::map<std::string, Tensor>;
using Json = nlohmann::json;

constexpr size_t kSmall = 40;  // bytes of a bucket: one or two parameters of mlp_bytes()

/// Sums of the session's parameters that differ between ranks.
Weights sums_of(const TrainingSession& session, int rank) {
  Weights sums;
  for (const std::string& name : session.parameter_names()) {
    Tensor sum = sums[name] = Tensor::empty(DType::f32, session.state(name).dims());
    for (int64_t i = 0; i < sum.size(); ++i)
      sum.data<float>()[i] = static_cast<float>(i) + static_cast<float>(rank) * 100;
  }
  return sums;
}

TEST(EarlySums, AreSentInTheSameOrderByAll) {
  const TrainingSession session = session_of(mlp_bytes(false), options_of("adamw"));
  const std::vector<std::string> order = session.parameter_names();
  for (const bool owned : {false, true}) {
    const std::vector<std::vector<std::string>> shares{{"w0"}, {"b0", "w1"}, {"b1"}};
    in_threads(3, [&](const std::shared_ptr<Peers>& peers) {
      EarlySums early(peers, order, owned ? shares : decltype(shares){}, session, DType::f32,
                      kSmall);
      std::vector<std::string> names = order;
      for (int step = 0; step < 2; ++step) {
        const Weights sums = sums_of(session, peers->rank());
        early.begin(sums, true, 2);
        std::rotate(names.begin(), names.begin() + peers->rank(), names.end());
        for (const std::string& name : names) {
          // A plan may not say that it has this one.
          if (peers->rank() != 1 || name != "w0") early.complete(name);
        }
        early.end();
        for (const auto& [name, sum] : sums) {
          const auto& own = shares[static_cast<size_t>(peers->rank())];
          if (owned && std::find(own.begin(), own.end(), name) == own.end()) continue;
          for (int64_t i = 0; i < sum.size(); ++i)
            EXPECT_EQ(sum.data<float>()[i], 2 * (3 * static_cast<float>(i) + 300)) << name;
        }
        EXPECT_EQ(early.take_ended().size(), owned ? 1U : 4U);  // one has something of each owner
      }
    });
  }
}

/// Tells when its first sum begins.
class TellingPeers : public testing::ThreadPeers {
 public:
  using ThreadPeers::ThreadPeers;
  std::promise<std::thread::id> first{};

 protected:
  void sum(float* values, size_t count) override {
    if (!std::exchange(told_, true)) first.set_value(std::this_thread::get_id());
    ThreadPeers::sum(values, count);
  }

 private:
  bool told_ = false;
};

TEST(EarlySums, LeaveWhileBackwardMakesOthers) {
  const TrainingSession session = session_of(mlp_bytes(false), options_of("adamw"));
  const std::vector<std::string> order = session.parameter_names();
  testing::Room room(2);
  const auto work = [&](int rank) {
    const auto peers = std::make_shared<TellingPeers>(room, rank);
    std::future<std::thread::id> first = peers->first.get_future();
    EarlySums early(peers, order, {}, session, DType::f32, 1);
    early.complete(order[1]);  // between two runs: nothing
    early.begin(sums_of(session, rank), true, 1);
    early.complete(order[1]);  // not the next one
    EXPECT_EQ(first.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    early.complete(order[0]);
    ASSERT_EQ(first.wait_for(std::chrono::seconds(60)), std::future_status::ready);
    EXPECT_NE(first.get(), std::this_thread::get_id());
    early.end();
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
}

TEST(EarlySums, AreThoseOfTheSessionWhenItSaysSo) {
  auto session = session_of(mlp_bytes(false), options_of("adamw"));
  auto plain = session_of(mlp_bytes(false), options_of("adamw"));
  std::vector<std::string> there;
  Weights then;
  const Weights sums = session.accumulated_gradients().sums;
  session.on_sum([&](const std::string& name) {
    there.push_back(name);
    then[name] = sums.at(name).clone();
  });
  for (int part = 0; part < 2; ++part) {
    there.clear();
    session.accumulate(batch(4, part));
    plain.accumulate(batch(4, part));
    std::sort(there.begin(), there.end());
    std::vector<std::string> all = session.parameter_names();
    std::sort(all.begin(), all.end());
    EXPECT_EQ(there, all);
    EXPECT_TRUE(testing::same_tensors(then, sums));
    EXPECT_TRUE(testing::same_tensors(then, plain.accumulated_gradients().sums));
  }
  EXPECT_THROW(session.on_sum({}), DataError);  // gradients wait
}

TEST(EarlySums, GoOnWhereOneProcessMadeItsSessionAnew) {
  auto alone = session_of(mlp_bytes(false), options_of("sgd"));
  for (int i = 0; i < 3; ++i) alone.step(batch(8, i));
  in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of("sgd"));
    auto anew = session_of(mlp_bytes(false), options_of("sgd"));
    DataParallel parallel(session, peers);
    parallel.move_to(session, {}, {});
    for (int i = 0; i < 3; ++i) {
      if (i == 1 && peers->rank() == 1) {
        anew.set_weights(session.weights());
        anew.set_optimizer_state(session.optimizer_state());
        anew.set_step_count(session.step_count());
        anew.set_run_count(session.run_count());
        parallel.move_to(anew, {}, {});
      }
      parallel.step(testing::share(batch(8, i), peers->rank(), 2));
    }
    testing::expect_near((peers->rank() == 1 ? anew : session).weights(), alone.weights());
  });
}

TEST(EarlySums, APartThatLosesThoseBeforeIsAnErrorOfAll) {
  in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of("adamw"));
    DataParallel parallel(session, peers);
    parallel.step(batch(4, 0));
    const Weights before = session.weights();
    bool fails = false;  // in the midst of backward, when some sums have changed
    session.on_sum([&](const std::string&) {
      if (fails) throw std::runtime_error("an error of backward");
    });
    for (int part = 0; part < 3; ++part) {
      fails = part == 1 && peers->rank() == 1;
      if (fails) {
        EXPECT_THROW(parallel.accumulate(batch(4, part)), std::runtime_error);
      } else {
        parallel.accumulate(batch(4, part));
      }
    }
    EXPECT_THROW(parallel.apply_gradients(), DataError);
    EXPECT_TRUE(testing::same_tensors(session.weights(), before));
    parallel.step(batch(4, 1));
  });
}

TEST(EarlySums, AreARowOfTheTrace) {
  in_threads(2, [](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(mlp_bytes(false), options_of("adamw"));
    DataParallel parallel(session, peers);
    parallel.step(batch(4, 0));
    session.start_profile();
    parallel.step(batch(4, 1));
    parallel.accumulate(batch(4, 2));
    parallel.apply_gradients();
    const std::string path = ::testing::TempDir() + "early" + std::to_string(peers->rank());
    session.write_profile(path);
    parallel.step(batch(4, 3));  // without a trace
    std::ifstream file(path);
    std::vector<std::string> found;
    std::set<int> rows, others;
    const Json trace = Json::parse(file);
    for (const Json& event : trace.at("traceEvents")) {
      if (event.at("ph") != "X") continue;
      const bool exchange = event.at("cat") == "communication";
      (exchange ? rows : others).insert(event.at("tid").get<int>());
      if (!exchange) continue;
      found.push_back(event.at("name"));
      const bool bucket = found.back().rfind("bucket", 0) == 0;
      EXPECT_EQ(event.at("args").value("bucket", -1), bucket ? 0 : -1);
      const bool gradients = bucket || found.back() == "sum of gradients";
      EXPECT_EQ(event.at("args").value("bytes", 0), gradients ? 4 * (15 + 5 + 20 + 4) : 0);
    }
    const std::vector<std::string> expected{"the start of a step", "bucket 0: b1 and 3 more",
                                            "the end of a step",   "the start of a step",
                                            "the end of a step",   "sum of gradients"};
    EXPECT_EQ(found, expected);
    EXPECT_EQ(rows.size(), 1U);
    EXPECT_EQ(others.count(*rows.begin()), 0U);
  });
}

}  // namespace
}  // namespace steep
