// Checkpoints of divided states: each process, here a thread, writes a shard; any number of
// processes reads them; and what happens when one cannot write, ends, or is elsewhere.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>

#include "attack/saves.h"
#include "parallel/divided.h"
#include "parallel/in_threads.h"
#include "runtime/disk.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;
using testing::batch;
using testing::expect_near;
using testing::Folder;
using testing::in_threads;
using testing::matrices_bytes;
using testing::Moments;
using testing::options_of;
using testing::same_tensors;
using testing::session_of;
using testing::share;
using testing::Weights;

struct Saved {
  Moments moments{};
  Weights weights{};
};

/// Two steps on so many processes, which then save to `path`.
void train(const std::string& bytes, const TrainingOptions& options, int zero, int ranks,
           const std::string& path, bool full, Saved* saved) {
  in_threads(ranks, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(bytes, options);
    DataParallel parallel(session, peers, {}, zero);
    for (int i = 0; i < 2; ++i) parallel.step(share(batch(7, i), peers->rank(), ranks));
    parallel.save_checkpoint(path, R"({"of":"me"})", full);
    EXPECT_TRUE(full || fs::exists(path)) << "all may load it now";
    saved->moments.add(session.optimizer_state());
    if (peers->rank() == 0) saved->weights = session.weights();
  });
}

/// Loads on so many processes, whose next step is that of `whole`.
void expect_loaded(const std::string& bytes, const TrainingOptions& options, int zero, int ranks,
                   const std::string& path, const Saved& saved, const Weights& next) {
  Moments loaded;
  in_threads(ranks, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(bytes, options);
    DataParallel parallel(session, peers, {}, zero);
    EXPECT_EQ(session.load_checkpoint(path), R"({"of":"me"})");
    EXPECT_TRUE(same_tensors(session.weights(), saved.weights));
    loaded.add(session.optimizer_state());
    parallel.step(share(batch(7, 5), peers->rank(), ranks));
    EXPECT_EQ(session.step_count(), 3);
    expect_near(session.weights(), next);
  });
  EXPECT_TRUE(same_tensors(loaded.all(), saved.moments.all()));
}

void expect_any_to_any(const std::string& bytes, const TrainingOptions& options, int zero,
                       std::initializer_list<int> befores, std::initializer_list<int> afters,
                       bool full = false) {
  for (const int before : befores) {
    const Folder folder;
    Saved saved;
    train(bytes, options, zero, before, folder / "run", full, &saved);
    EXPECT_EQ(testing::entries(folder / ""), 1u);
    EXPECT_EQ(testing::entries(folder / "run"), full ? 3u : static_cast<size_t>(before) + 2);
    auto whole = session_of(bytes, options);
    whole.load_checkpoint(folder / "run");
    EXPECT_TRUE(same_tensors(whole.optimizer_state(), saved.moments.all()));
    EXPECT_TRUE(same_tensors(whole.weights(), saved.weights));
    whole.step(batch(7, 5));
    for (const int after : afters) {
      SCOPED_TRACE(fmt::format("{} to {}", before, after));
      expect_loaded(bytes, options, zero, after, folder / "run", saved, whole.weights());
    }
  }
}

TrainingOptions with_groups(const std::string& state_precision) {
  TrainingOptions options = options_of("adamw");
  options.optimizer.state_precision = state_precision;
  options.groups = {{.names = {"w2"}, .optimizer = OptimizerOptions{.kind = "sgd", .lr = 0.1}}};
  return options;
}

TEST(ShardedStates, OfAnyNumberOfProcessesAreReadByAnyNumber) {
  expect_any_to_any(matrices_bytes(), with_groups("float32"), 1, {1, 2, 3, 4, 7}, {1, 2, 3, 4, 7});
  expect_any_to_any(matrices_bytes(1501), with_groups("int8"), 2, {2, 3, 7}, {1, 3, 4});
  expect_any_to_any(matrices_bytes(), with_groups("float32"), 2, {3}, {1, 2}, true);
}

TEST(ShardedStates, OfGradientsInSeveralBuckets) {
  // w0 is 2.6 MB, w1 4.4 MB: they and the rest are a bucket each.
  expect_any_to_any(matrices_bytes(220'001), options_of("adamw"), 2, {3}, {2, 7});
}

TEST(ShardedStates, AreConvertedToAnotherPrecisionOnEachProcess) {
  const std::string bytes = matrices_bytes(1501);
  const char* const precisions[] = {"int8", "float32", "bfloat16"};
  for (const std::string before : precisions) {
    const Folder folder;
    Saved saved;
    train(bytes, with_groups(before), 1, 3, folder / "run", false, &saved);
    for (const std::string after : precisions) {
      auto whole = session_of(bytes, with_groups(after));
      whole.load_checkpoint(folder / "run");
      Moments loaded;
      in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
        auto session = session_of(bytes, with_groups(after));
        DataParallel parallel(session, peers, {}, 1);
        session.load_checkpoint(folder / "run");
        EXPECT_EQ(session.checkpoint_note(), whole.checkpoint_note());
        loaded.add(session.optimizer_state());
      });
      EXPECT_TRUE(same_tensors(loaded.all(), whole.optimizer_state())) << before << " " << after;
    }
  }
}

TEST(ShardedStates, OfAnotherModelAreRefused) {
  const Folder folder;
  Saved saved;
  train(matrices_bytes(7), options_of("adamw"), 1, 3, folder / "run", false, &saved);
  in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(matrices_bytes(9), options_of("adamw"));
    DataParallel parallel(session, peers, {}, 1);
    EXPECT_THROW(session.load_checkpoint(folder / "run"), CheckpointError);
    auto without = session_of(matrices_bytes(7), options_of("sgd"));
    DataParallel other(without, peers, {}, 1);
    EXPECT_THROW(without.load_checkpoint(folder / "run"), CheckpointError);
  });
}

/// Trains on three processes, and saves; then again, when `fault` decides on the calls to the disk.
/// Returns what each rank threw, as its class and node. The first checkpoint has to be there.
std::vector<std::string> save_with(const FaultHook& fault) {
  const std::string bytes = matrices_bytes();
  const Folder folder;
  std::vector<std::string> thrown(3);
  Saved saved;
  train(bytes, options_of("adamw"), 1, 3, folder / "run", false, &saved);
  in_threads(3, [&](const std::shared_ptr<Peers>& peers) {
    const auto rank = static_cast<size_t>(peers->rank());
    auto session = session_of(bytes, options_of("adamw"));
    DataParallel parallel(session, peers, {}, 1);
    parallel.step(batch(4, 1));
    if (rank == 0) set_fault_hook(fault);
    peers->agree("the hook", {});
    try {
      parallel.save_checkpoint(folder / "run");
    } catch (const IoError& error) {
      thrown[rank] = "IoError " + error.parts().node;
    }
    peers->agree("the error", {});
    if (rank == 0) set_fault_hook(nullptr);
    peers->agree("no hook", {});
    session.load_checkpoint(folder / "run");
    EXPECT_TRUE(same_tensors(session.weights(), saved.weights));
    if (rank == 0) {
      EXPECT_EQ(testing::entries(folder / ""), 1u);
    }
    peers->agree("a look", {});
    parallel.save_checkpoint(folder / "run");
    if (rank == 0) {
      EXPECT_EQ(testing::entries(folder / ""), 1u);
    }
  });
  return thrown;
}

bool is_of(const DiskCall& call, const char* name, const char* file) {
  return call.name == name && call.path.find(file) != std::string_view::npos;
}

TEST(ShardedStates, AFullDiskOnOneProcessIsAnErrorOfAllAndChangesNothing) {
  using Each = std::vector<std::string>;
  const auto full_at = [](const char* name, const char* file) {
    return save_with([=](const DiskCall& call) { return is_of(call, name, file) ? ENOSPC : 0; });
  };
  EXPECT_EQ(full_at("write", "optimizer-00002-of"),
            (Each{"IoError rank 1", "IoError ", "IoError rank 1"}));
  EXPECT_EQ(full_at("fsync", "optimizer-00003-of"),
            (Each{"IoError rank 2", "IoError rank 2", "IoError "}));
  for (const char* file : {"optimizer.safetensors", "model.safetensors", "manifest.json"}) {
    EXPECT_EQ(full_at("write", file), (Each{"IoError ", "IoError rank 0", "IoError rank 0"}))
        << file;
  }
  EXPECT_EQ(full_at("mkdir", ".steep-tmp."),
            (Each{"IoError ", "IoError rank 0", "IoError rank 0"}));
}

TEST(ShardedStates, AProcessThatEndsHalfWayChangesNothing) {
  struct Killed {};
  const std::string bytes = matrices_bytes();
  for (const char* file : {"optimizer-00002-of", "optimizer.safetensors", "manifest.json"}) {
    const Folder folder;
    Saved saved;
    train(bytes, options_of("adamw"), 2, 3, folder / "run", false, &saved);
    std::atomic<int> lost = 0;
    const auto run = [&](const std::shared_ptr<Peers>& peers) {
      auto session = session_of(bytes, options_of("adamw"));
      DataParallel parallel(session, peers, {}, 2);
      parallel.step(batch(4, 1));
      if (peers->rank() == 0) {
        set_fault_hook([&](const DiskCall& call) -> int {
          if (is_of(call, "write", file)) throw Killed();
          return 0;
        });
      }
      peers->agree("the hook", {});
      try {
        parallel.save_checkpoint(folder / "run");
      } catch (const Error&) {  // rank 0 removes the folder when it is unwound
        ++lost;
      }
    };
    EXPECT_THROW(in_threads(3, run), Killed);
    set_fault_hook(nullptr);
    EXPECT_EQ(lost, 2);
    auto whole = session_of(bytes, options_of("adamw"));
    whole.load_checkpoint(folder / "run");
    EXPECT_TRUE(same_tensors(whole.weights(), saved.weights));
    EXPECT_TRUE(same_tensors(whole.optimizer_state(), saved.moments.all()));
  }
}

TEST(ShardedStates, NeedAFolderThatAllSee) {
  const Folder one, other;
  in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(matrices_bytes(), options_of("adamw"));
    DataParallel parallel(session, peers, {}, 1);
    parallel.step(batch(4, 1));
    try {
      parallel.save_checkpoint((peers->rank() == 0 ? one : other) / "run");
      ADD_FAILURE() << "no error";
    } catch (const IoError& error) {
      EXPECT_NE(error.parts().remedy.find("--full-checkpoints"), std::string::npos);
    }
    if (peers->rank() == 0) {
      EXPECT_EQ(testing::entries(one / ""), 0u);
    }
    parallel.save_checkpoint((peers->rank() == 0 ? one : other) / "run", "{}", true);
    peers->agree("a look", {});
    EXPECT_EQ(testing::entries(one / "run"), 3u);
    EXPECT_EQ(testing::entries(other / ""), 0u);
  });
}

TEST(ShardedStates, OfTwoCheckpointsAreNotMixed) {
  const Folder folder;
  Saved saved;
  train(matrices_bytes(), options_of("adamw"), 1, 2, folder / "run", false, &saved);
  in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(matrices_bytes(), options_of("adamw"));
    DataParallel parallel(session, peers, {}, 1);
    parallel.step(batch(4, 1));
    if (peers->rank() == 1) session.load_checkpoint(folder / "run");
    for (const bool full : {false, true}) {
      EXPECT_THROW(parallel.save_checkpoint(folder / "new", "{}", full), DataError);
    }
    EXPECT_FALSE(fs::exists(folder / "new"));
    // What one process cannot save is an error of all.
    session.load_checkpoint(folder / "run");
    parallel.loaded();
    if (peers->rank() == 0) session.accumulate(batch(4, 1));
    EXPECT_THROW(parallel.save_checkpoint(folder / "new"), DataError);
    EXPECT_FALSE(fs::exists(folder / "new"));
  });
}

TEST(ShardedStates, OtherCallsOnOtherProcessesAreAnErrorOfAll) {
  using Call = std::function<void(DataParallel&, const std::string&)>;
  const std::vector<Call> calls{
      [](auto& parallel, const auto& path) { parallel.save_checkpoint(path); },
      [](auto& parallel, const auto& path) { parallel.save_checkpoint(path, "{}", true); },
      [](auto& parallel, const auto&) { parallel.optimizer_state(); }};
  const Folder folder;
  in_threads(2, [&](const std::shared_ptr<Peers>& peers) {
    auto session = session_of(matrices_bytes(), options_of("adamw"));
    DataParallel parallel(session, peers, {}, 1);
    parallel.step(batch(4, 1));
    for (size_t first = 0; first < calls.size(); ++first) {
      for (size_t second = 0; second < calls.size(); ++second) {
        if (first == second) continue;
        const Call& call = calls[peers->rank() == 0 ? first : second];
        EXPECT_THROW(call(parallel, folder / "run"), ProviderError) << first << " " << second;
      }
    }
    EXPECT_FALSE(fs::exists(folder / "run"));
    parallel.save_checkpoint(folder / "run");
  });
}

}  // namespace
}  // namespace steep
