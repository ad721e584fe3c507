#include "runtime/threads.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <latch>
#include <system_error>
#include <vector>

#include "runtime/headroom.h"
#include "steep/error.h"

namespace steep {
namespace {

/// What is known of one thread that calls.
struct Caller {
  int proven = 1;      // so many can compute for it
  int most = INT_MAX;  // more cannot
  int lost = 0;        // so many computed before the fork
  int calls = 0;       // of the engine that it is in, one within the other
};
thread_local Caller caller;

std::atomic<int> callers = 0;           // threads in a call
std::atomic<bool> left_behind = false;  // some of these, by a fork

/// OpenMP keeps a team for each thread that calls; of the one that forked it does not know that the
/// others are gone.
void enter_child() {
  const int own = caller.calls > 0 ? 1 : 0;
  if (callers > own) left_behind = true;
  callers = own;
  caller.lost = std::max(caller.lost, omp_get_max_threads());
  caller.most = 1;
  if (caller.lost > 1) omp_set_num_threads(1);
}

/// Asks for this thread's thread-local data, of which a lack ends the process later: what a running
/// process loads has them made when they are first read, those of exceptions when one is thrown.
int ask_for_thread_local_data() {
  volatile int read = caller.calls;
  read = std::uncaught_exceptions();  // which is pure: a compiler drops it where nobody reads it
  return read;
}

[[maybe_unused]] const int asked = ask_for_thread_local_data();
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, enter_child);

/// How many of `wanted` threads the system lets live beside the caller's team of `proven`. Where it
/// lets no more, an eighth of these is left to it: a thread that was joined still counts for a
/// moment, and others start some too.
int startable(int proven, int wanted) {
  std::vector<std::thread> started;
  std::latch all(1);
  int left = 0;
  try {
    while (proven + static_cast<int>(started.size()) < wanted) {
      started.emplace_back([&all] { all.wait(); });
    }
  } catch (const std::system_error&) {
    left = static_cast<int>(started.size()) / 8;
  }
  all.count_down();
  for (std::thread& t : started) t.join();
  return proven + static_cast<int>(started.size()) - left;
}

/// Starts the team while there is memory for it; each thread with a heap of its own, if that is
/// what malloc gives it.
void start_team(int threads) {
#pragma omp parallel num_threads(threads)
  {
    void* volatile block = std::malloc(64);
    std::free(block);
    ask_for_thread_local_data();
  }
}

void tell(int wanted) {
  static std::atomic<bool> told = false;
  if (told.exchange(true)) return;
  if (caller.lost > 0) {
    std::fprintf(stderr,
                 "steep: one thread of %d computes, since this process was forked; start it by "
                 "\"spawn\" for all\n",
                 wanted);
  } else {
    std::fprintf(stderr,
                 "steep: %d of %d threads compute, since the system starts no more (see the limits "
                 "of processes and of memory)\n",
                 caller.most, wanted);
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

}  // namespace

int settle_threads(int planned) {
  if (omp_in_parallel() != 0) return caller.most;  // regions within regions have one thread
  const int wanted = std::max(planned, omp_get_max_threads());
  if (std::min(wanted, caller.most) > caller.proven) {
    // Kept from the threads: what they will need to work.
    const Headroom kept(2 * kHeadroom);
    const int found = kept.there() ? startable(caller.proven, wanted) : caller.proven;
    if (found > caller.proven) start_team(found);
    caller.proven = found;
    if (found < wanted) caller.most = found;
  }
  if (std::max(wanted, caller.lost) > caller.most) {
    tell(std::max(wanted, caller.lost));
    if (omp_get_max_threads() > caller.most) omp_set_num_threads(caller.most);
  }
  return caller.most;
}

ThreadBound::ThreadBound(int most) : before_(most > 0 ? omp_get_max_threads() : 0) {
  if (most > 0) omp_set_num_threads(most);
}

ThreadBound::~ThreadBound() {
  if (before_ > 0) omp_set_num_threads(std::min(before_, caller.most));
}

EngineCall::EngineCall() { enter_call(); }
EngineCall::~EngineCall() { leave_call(); }

void Turn::lock() {
  if (holder_ == std::this_thread::get_id()) {
    throw ProviderError(
        {.what = "A session was called from within one of its own calls.",
         .expected = "one call at a time",
         .remedy = "Let the handler of a signal, or the destructor of what was fed, set a flag, "
                   "and call the session when the call has returned."});
  }
  enter_call();  // waiting counts: who is waited for is in a call
  mutex_.lock();
  holder_ = std::this_thread::get_id();
}

void Turn::unlock() {
  holder_ = std::thread::id();
  mutex_.unlock();
  leave_call();
}

}  // namespace steep
