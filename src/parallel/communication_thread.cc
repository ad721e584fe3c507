#include "parallel/communication_thread.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "runtime/threads.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Not condition_variable::wait(), which needs a libstdc++ of GCC 12: a library that is built on
/// one machine runs on older ones (docs/platforms.md).
template <typename Condition>
void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                Condition&& condition) {
  while (!changed.wait_for(lock, std::chrono::hours(1), condition)) {
  }
}

}  // namespace

CommunicationThread::~CommunicationThread() {
  if (!state_->thread.joinable()) return;
  if (process_ != ::getpid()) {  // a fork: the thread, which waits, is in the other process
    [[maybe_unused]] const auto* left_alone = state_.release();
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->stops = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

void CommunicationThread::start(Exchange exchange, std::function<void()> run) {
  Job job{std::move(exchange), std::move(run)};
  if (!beside_) {
    if (!state_->error) this->run(job);
    return;
  }
  if (state_->thread.joinable() && process_ != ::getpid()) {
    throw ProviderError({.what = "A process that was forked cannot exchange gradients with others.",
                         .expected = "the process that made the connections",
                         .remedy = "Start processes by spawn, or connect after the fork."});
  }
  std::unique_lock lock(state_->mutex);
  if (!state_->thread.joinable()) {
    state_->thread = start_quiet_thread("the exchange of gradients", [this] { run_jobs(); });
    process_ = ::getpid();
  }
  wait_until(state_->changed, lock, [&] { return state_->jobs.size() < most_ || state_->error; });
  if (state_->error) return;
  state_->jobs.push_back(std::move(job));
  state_->changed.notify_all();
}

void CommunicationThread::wait() {
  std::unique_lock lock(state_->mutex);
  wait_until(state_->changed, lock, [&] { return state_->jobs.empty(); });
  if (state_->error) std::rethrow_exception(std::exchange(state_->error, nullptr));
}

std::vector<Exchange> CommunicationThread::take_ended() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->ended, {});
}

/// `job` keeps its place meanwhile: others are added behind it only.
void CommunicationThread::run(Job& job) {
  std::exception_ptr error;
  job.exchange.start = std::chrono::steady_clock::now();
  try {
    job.run();
  } catch (...) {
    error = std::current_exception();
  }
  job.run = nullptr;  // with what it holds
  job.exchange.end = std::chrono::steady_clock::now();
  const std::lock_guard lock(state_->mutex);
  state_->error = error;
  if (!error) state_->ended.push_back(std::move(job.exchange));
}

void CommunicationThread::run_jobs() {
  for (;;) {
    Job* job = nullptr;
    {
      std::unique_lock lock(state_->mutex);
      wait_until(state_->changed, lock, [&] { return state_->stops || !state_->jobs.empty(); });
      if (state_->jobs.empty()) return;
      job = &state_->jobs.front();
    }
    run(*job);
    const std::lock_guard lock(state_->mutex);
    state_->error ? state_->jobs.clear() : state_->jobs.pop_front();
    state_->changed.notify_all();
  }
}

}  // namespace steep
