// Failing allocations: for each k, operator new and the engine's own allocations fail at the k-th
// request, once or from then on. The call must throw OutOfMemoryError or succeed; nothing may leak;
// session, checkpoint and process must be usable afterwards.

#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <optional>

#include "attack/attack.h"
#include "runtime/memory.h"
#include "steep/steep.h"
#include "train/models.h"

namespace {

std::atomic<int64_t> requests = 0;  // since the fault was set
std::atomic<int64_t> fail_from = 0, fail_until = 0;
std::atomic<int64_t> live = 0;  // live blocks of operator new

bool may_have_memory() {
  const int64_t k = ++requests;
  return k < fail_from || k >= fail_until;
}

void* take(std::size_t bytes, std::size_t alignment) {
  void* p = nullptr;
  if (may_have_memory() && posix_memalign(&p, alignment, bytes == 0 ? 1 : bytes) == 0) ++live;
  return p;
}

void* take_or_throw(std::size_t bytes, std::size_t alignment) {
  void* p = take(bytes, alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

void give(void* p) {
  if (p == nullptr) return;
  --live;
  std::free(p);
}

constexpr std::size_t kPlain = 16;
std::size_t to_size(std::align_val_t a) { return static_cast<std::size_t>(a); }

}  // namespace

void* operator new(std::size_t n) { return take_or_throw(n, kPlain); }
void* operator new[](std::size_t n) { return take_or_throw(n, kPlain); }
void* operator new(std::size_t n, std::align_val_t a) { return take_or_throw(n, to_size(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return take_or_throw(n, to_size(a)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return take(n, kPlain); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return take(n, kPlain); }
void operator delete(void* p) noexcept { give(p); }
void operator delete[](void* p) noexcept { give(p); }
void operator delete(void* p, std::size_t) noexcept { give(p); }
void operator delete[](void* p, std::size_t) noexcept { give(p); }
void operator delete(void* p, std::align_val_t) noexcept { give(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { give(p); }

// Known leaks, which the tests allow for; all other leaks are reported.
// NOLINTBEGIN(*-reserved-identifier): the sanitizer calls it by this name
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:google::protobuf\nleak:make_unique<onnx::ModelProto>\n";
}
// NOLINTEND(*-reserved-identifier)

namespace steep::testing {
namespace {

namespace fs = std::filesystem;

/// The outcome of a call under a fault.
enum class End { done, out_of_memory, other };

End end_of(const std::function<void()>& call, int64_t from, int64_t until) {
  End end = End::done;
  requests = 0;
  fail_until = until;
  fail_from = from;
  try {
    call();
  } catch (const OutOfMemoryError&) {
    end = End::out_of_memory;
  } catch (...) {
    end = End::other;
  }
  fail_from = fail_until = 0;
  return end;
}

using Prepare = std::function<std::function<void()>()>;
using Good = std::function<bool()>;
constexpr int kTerminated = 77;
// A partly parsed model leaks, because it cannot be destroyed (model/import/check.cc).
constexpr int64_t kLostByParsing = 500;

class Attack : public ::testing::Test {
 protected:
  void SetUp() override {
    omp_set_num_threads(1);
    set_allocation_hook([](size_t) { return may_have_memory(); });
    const fs::path memory = "/dev/shm";
    std::string pattern =
        (fs::exists(memory) ? memory : fs::temp_directory_path()) / "steep.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    run_ = folder_ / "run";
  }
  void TearDown() override {
    set_allocation_hook(nullptr);
    fs::remove_all(folder_);
  }

  static TrainingOptions options() {
    return {.loss = "softmax_cross_entropy", .optimizer = {.kind = "adamw"}, .clip_norm = 1.0};
  }
  TrainingSession session() const { return session_of(bytes_, options()); }
  double step(TrainingSession& s) const { return s.step(inputs_).loss; }

  /// Makes the k-th request fail for k = 1, 1 + stride, … until the call makes fewer than k
  /// requests. `prepare` sets up the state for `call`, `good` checks it afterwards. Each case may
  /// leak `lost` blocks, because protobuf leaks a message that it adds to a list when the list
  /// cannot grow.
  void attack(const char* name, const Prepare& prepare, const Good& good, int64_t lost = 0) {
    AttackReport report(name);
    const int64_t total = count_requests(prepare, good);
    for (int64_t k = 1; k <= total; k += stride(total)) {
      for (const bool persistent : {false, true}) {
        const char* how = persistent ? "and all later" : "alone";
        const int64_t before = live;
        End end = End::other;
        {
          const auto call = prepare();
          end = end_of(call, k, persistent ? INT64_MAX : k + 1);
        }
        const bool usable = good();
        reset();
        const int64_t left = live - before;
        report.count(end != End::other && usable && left <= lost,
                     fmt::format("request {} ({}) of {}: {}, {}, {} blocks left", k, how, total,
                                 end == End::other ? "another error" : "typed",
                                 usable ? "usable" : "not usable afterwards", left));
      }
    }
  }

  /// The same for calls that read or write JSON or list a folder: nlohmann's values and libstdc++'s
  /// folder iterators terminate the process when memory runs out. So each case runs in a child
  /// process, which may terminate; the files must be intact even then.
  void attack_processes(const char* name, const Prepare& prepare, const Good& good) {
    AttackReport report(name);
    const int64_t total = count_requests(prepare, good);
    int64_t ended = 0;
    for (int64_t k = 1; k <= total; k += stride(total)) {
      for (const bool persistent : {false, true}) {
        const auto call = prepare();
        const pid_t child = fork();
        if (child == 0) {
          std::set_terminate([] { _exit(kTerminated); });
          const End end = end_of(call, k, persistent ? INT64_MAX : k + 1);
          _exit(end != End::other && good() ? 0 : 1);
        }
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        const bool by_itself = WIFEXITED(status) && WEXITSTATUS(status) != kTerminated;
        ended += by_itself ? 0 : 1;
        report.count((!by_itself || WEXITSTATUS(status) == 0) && good(),
                     fmt::format("request {} ({}) of {}: status {}", k,
                                 persistent ? "and all later" : "alone", total, status));
        reset();
      }
    }
    fmt::print("{}: {} processes ended\n", name, ended);
  }

  static int64_t stride(int64_t total) {
    return attack_at_length() ? 1 : std::max<int64_t>(total / 60, 1);
  }
  /// The number of requests of a call without faults, after all caches are filled.
  int64_t count_requests(const Prepare& prepare, const Good& good) {
    for (int i = 0; i < 2; ++i) {
      prepare()();
      EXPECT_TRUE(good());
      reset();
    }
    const int64_t before = live;
    {
      const auto call = prepare();
      end_of(call, 0, 0);
    }
    const int64_t total = requests;
    reset();
    EXPECT_EQ(live, before) << "a leak without any fault";
    return total;
  }
  void reset() {
    session_.reset();
    fs::remove_all(run_);
  }
  /// A session after one step, with a checkpoint of it if `saved`.
  TrainingSession& trained(bool saved) {
    session_.emplace(session());
    step(*session_);
    if (saved) session_->save_checkpoint(run_);
    return *session_;
  }

  const std::string bytes_ = mlp_bytes(true);
  const std::vector<Tensor> inputs_{random_tensor({6, 3}, 1), random_labels(6, 4, 2)};
  fs::path folder_, run_;
  std::optional<TrainingSession> session_;
};

TEST_F(Attack, MemoryFailsInImport) {
  double loss = 0;
  {
    TrainingSession s = session();
    loss = step(s);
  }
  attack(
      "malloc/import",
      [&] {
        auto given = std::make_shared<TrainingOptions>(options());
        return [this, given] { session_.emplace(as_span(bytes_), std::move(*given)); };
      },
      [&] {
        session_.emplace(session());
        return step(*session_) == loss;
      },
      kLostByParsing);
}

TEST_F(Attack, MemoryFailsInTheFirstStep) {
  double loss = 0;
  {
    TrainingSession s = session();
    loss = step(s);
  }
  bool made = false;
  attack(
      "malloc/compile",
      [&] {
        session_.emplace(session());
        made = false;
        return [&] {
          step(*session_);
          made = true;
        };
      },
      [&] { return made || step(*session_) == loss; }, 2);
}

TEST_F(Attack, MemoryFailsInAStep) {
  double losses[2];
  {
    TrainingSession s = session();
    for (double& loss : losses) loss = (step(s), s.eval(inputs_).loss.value());
  }
  attack(
      "malloc/step",
      [&] {
        TrainingSession& s = trained(false);
        return [&] { step(s); };
      },
      [&] {  // all of the step was done, or nothing
        const int64_t done = session_->step_count();
        return done >= 1 && done <= 2 && *session_->eval(inputs_).loss == losses[done - 1];
      });
}

TEST_F(Attack, MemoryFailsInASave) {
  attack_processes(
      "malloc/save",
      [&] {
        TrainingSession& s = trained(true);
        step(s);
        return [&] { s.save_checkpoint(run_); };
      },
      [&] {
        TrainingSession other = session();
        other.load_checkpoint(run_);
        if (other.step_count() != 1 && other.step_count() != 2) return false;
        session_->save_checkpoint(run_);
        other.load_checkpoint(run_);
        const auto entries = std::distance(fs::directory_iterator(folder_), {});
        return other.step_count() == 2 && same_tensors(other.weights(), session_->weights()) &&
               entries == 1;
      });
}

TEST_F(Attack, MemoryFailsInALoad) {
  std::map<std::string, Tensor> first, second;
  {
    TrainingSession& s = trained(false);
    first = s.weights();
    step(s);
    second = s.weights();
    session_.reset();
  }
  attack_processes(
      "malloc/load",
      [&] {
        TrainingSession& s = trained(true);
        step(s);
        return [&] { s.load_checkpoint(run_); };
      },
      [&] {  // all of it was loaded, or nothing
        return same_tensors(session_->weights(), session_->step_count() == 1 ? first : second);
      });
}

TEST_F(Attack, MemoryFailsInAnExport) {
  std::string exported;
  {
    exported = trained(false).export_onnx_bytes();
    session_.reset();
  }
  attack(
      "malloc/export",
      [&] {
        TrainingSession& s = trained(false);
        return [&] { s.export_onnx_bytes(); };
      },
      [&] { return session_->export_onnx_bytes() == exported; }, 2);
}

}  // namespace
}  // namespace steep::testing
