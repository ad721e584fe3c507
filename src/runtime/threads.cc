#include "runtime/threads.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <omp.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <latch>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/headroom.h"
#include "runtime/spinning.h"
#include "steep/error.h"

namespace steep {
namespace {

/// The state of one thread that calls the engine.
struct Caller {
  int proven = 1;               // this many threads can compute for it
  int most = INT_MAX;           // no more than these can
  int old_team = 0;             // threads that computed before the fork
  int calls = 0;                // nesting level of calls of the engine
  double looked = 0;            // when it last looked for neighbours, in seconds of a clock
  double ran = 0, delayed = 0;  // read_times() at that time
};
thread_local Caller caller;

std::atomic<int> callers = 0;           // threads in a call
std::atomic<bool> left_behind = false;  // some of these existed when the process was forked

/// OpenMP keeps a team for each thread that calls it. In a forked process it does not know that the
/// team of the forking thread no longer exists.
void enter_child() {
  const int own = caller.calls > 0 ? 1 : 0;
  if (callers > own) left_behind = true;
  callers = own;
  caller.old_team = std::max(caller.old_team, omp_get_max_threads());
  caller.most = 1;
  if (caller.old_team > 1) omp_set_num_threads(1);
}

/// Allocates this thread's thread-local data. If memory lacks later, the process ends: libraries
/// loaded at run time allocate the data at the first read, and that of exceptions at the first
/// throw.
int ask_for_thread_local_data() {
  volatile int result = caller.calls;
  result = std::uncaught_exceptions();  // pure, but the volatile store keeps the call
  return result;
}

[[maybe_unused]] const int asked = ask_for_thread_local_data();
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, enter_child);

/// How many of `count` threads the system can run, including the caller's team of `base`. If it
/// cannot run all, an eighth of the new ones is left unused: a joined thread still counts for a
/// moment, and other programs start threads, too.
int startable(int base, int count) {
  std::vector<std::thread> threads;
  std::latch all(1);
  int spare = 0;
  try {
    while (base + static_cast<int>(threads.size()) < count) {
      threads.emplace_back([&all] { all.wait(); });
    }
  } catch (const std::system_error&) {
    spare = static_cast<int>(threads.size()) / 8;
  }
  all.count_down();
  for (std::thread& t : threads) t.join();
  return base + static_cast<int>(threads.size()) - spare;
}

/// Starts the team while there is memory for it. Each thread allocates once, so that malloc makes
/// its heap now.
void start_team(int threads) {
#pragma omp parallel num_threads(threads)
  {
    void* volatile block = std::malloc(64);
    std::free(block);
    ask_for_thread_local_data();
  }
}

struct Times {
  double ran, delayed;  // the calling thread had a processor, and was ready but had none; seconds
};

/// Zeros where the system does not tell. Without memory of the heap, since a step allocates none.
Times read_times() {
  char text[80] = {};
  const int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  if (size <= 0) return {};
  char* rest = text;
  const unsigned long long ran = std::strtoull(rest, &rest, 10);  // nanoseconds
  const unsigned long long delayed = std::strtoull(rest, &rest, 10);
  return {static_cast<double>(ran) * 1e-9, static_cast<double>(delayed) * 1e-9};
}

std::atomic<bool> briefly = false;  // a second team lives

/// A thread of GCC's OpenMP that waits for another one spins for milliseconds, and then sleeps. If
/// there are more such threads than processors, it spins for microseconds (GOMP_SPINCOUNT in GCC's
/// manual). So a second team, whose two threads sleep, makes the first one spin briefly.
void spin_briefly(bool wanted) {
  if (briefly.exchange(wanted) == wanted) return;
  briefly.notify_all();
  if (!wanted) return;
  // Where these threads cannot start, the first team spins as before.
  const Headroom headroom(2 * kHeadroom);
  if (!headroom.there() || startable(0, 2) < 2) return;
  try {
    std::thread([] {
      start_team(2);
      briefly.wait(true);  // the team ends with its first thread
    }).detach();
  } catch (const std::system_error&) {
    return;
  }
}

/// Looks ten times a second at most. Reading the clock takes a few nanoseconds.
void watch_neighbours() {
  constexpr double kInterval = 0.1;
  static const bool chosen =
      std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  static const int processors = omp_get_num_procs();
  // With fewer threads, a neighbour has a processor of its own; with more, they spin briefly.
  if (chosen || processors < 2 || omp_get_max_threads() != processors) return;
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  const double now = static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  if (now - caller.looked < kInterval) return;
  const Times times = read_times();
  const double ran = times.ran - caller.ran, delayed = times.delayed - caller.delayed;
  if (caller.looked > 0 && ran + delayed > kInterval / 2) {
    static std::mutex mutex;  // never waited for: another caller is looking
    static SpinRule rule;     // of all callers
    if (const std::unique_lock lock(mutex, std::try_to_lock); lock) {
      spin_briefly(rule.look(delayed / (ran + delayed), processors));
    }
  }
  caller.looked = now;
  caller.ran = times.ran;
  caller.delayed = times.delayed;
}

void tell(int count) {
  static std::atomic<bool> told = false;
  if (told.exchange(true)) return;
  if (caller.old_team > 0) {
    std::fprintf(stderr,
                 "steep: one thread of %d computes, since this process was forked; start it by "
                 "\"spawn\" for all\n",
                 count);
  } else {
    std::fprintf(stderr,
                 "steep: %d of %d threads compute, since the system starts no more (see the limits "
                 "of processes and of memory)\n",
                 caller.most, count);
  }
}

void enter_call() {
  if (left_behind) {
    throw ProviderError(
        {.what = "The process was forked while another thread was in a call of the engine.",
         .expected = "a process of its own, or a fork between calls",
         .remedy = "Start the process by \"spawn\" (multiprocessing.set_start_method), or fork "
                   "before other threads use the engine."});
  }
  if (caller.calls++ == 0) ++callers;
}

void leave_call() {
  if (--caller.calls == 0) --callers;
}

/// Blocks all signals of the calling thread, and so of threads that it starts, during its lifetime.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

int settle_threads(int count) {
  if (omp_in_parallel() != 0) return caller.most;  // nested regions have one thread
  const int target = std::max(count, omp_get_max_threads());
  if (std::min(target, caller.most) > caller.proven) {
    // Reserved, so that threads leave the memory that they need for work.
    const Headroom headroom(2 * kHeadroom);
    const int team = headroom.there() ? startable(caller.proven, target) : caller.proven;
    if (team > caller.proven) start_team(team);
    caller.proven = team;
    if (team < target) caller.most = team;
  }
  if (std::max(target, caller.old_team) > caller.most) {
    tell(std::max(target, caller.old_team));
    if (omp_get_max_threads() > caller.most) omp_set_num_threads(caller.most);
  }
  watch_neighbours();
  return caller.most;
}

std::thread start_quiet_thread(const char* work, std::function<void()> run) {
  const BlockedSignals blocked;
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    throw ProviderError({.what = fmt::format("The thread for {} cannot be started.", work),
                         .received = error.what(),
                         .remedy = "Raise the limit on processes and threads (ulimit -u), or end "
                                   "other programs."});
  }
}

ThreadBound::ThreadBound(int64_t most) : before_(most > 0 ? omp_get_max_threads() : 0) {
  if (most < 0 || most > kMostThreads) {
    throw ModelError({.what = "No session can have this number of threads.",
                      .node = "threads",
                      .expected = fmt::format("1 to {}, or 0 for OpenMP's", kMostThreads),
                      .received = std::to_string(most)});
  }
  if (most > 0) omp_set_num_threads(static_cast<int>(most));
}

ThreadBound::~ThreadBound() {
  if (before_ > 0) omp_set_num_threads(std::min(before_, caller.most));
}

EngineCall::EngineCall() { enter_call(); }
EngineCall::~EngineCall() { leave_call(); }

void CallLock::lock() {
  if (holder_ == std::this_thread::get_id()) {
    throw ProviderError(
        {.what = "A session was called from within one of its own calls.",
         .expected = "one call at a time",
         .remedy = "Let the handler of a signal, or the destructor of what was fed, set a flag, "
                   "and call the session when the call has returned."});
  }
  if (process_ != 0 && process_ != getpid()) {
    throw ProviderError(
        {.what = "A forked process cannot use a session whose states lie in a file.",
         .expected = "the process that made the session",
         .remedy = "Make the session in this process, or start the process by \"spawn\" "
                   "(multiprocessing.set_start_method)."});
  }
  enter_call();  // a waiting thread counts as in a call, because the holder of the lock is
  mutex_.lock();
  if (threads_ > 0) bound_.emplace(threads_);
  holder_ = std::this_thread::get_id();
}

void CallLock::hold_process() { process_ = getpid(); }

void CallLock::bound_threads(int64_t most) {
  const ThreadBound checked(most);
  threads_ = most;
}

void CallLock::unlock() {
  bound_.reset();
  holder_ = std::thread::id();
  mutex_.unlock();
  leave_call();
}

}  // namespace steep
