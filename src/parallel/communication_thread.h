// Exchanges with other processes that run beside backward.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "steep/exchange.h"

namespace steep {

/// Runs exchanges in a thread of its own, one after the other, in the order in which they were
/// started. After one has failed, others are not run until wait(). Its functions are called by one
/// thread, which uses what an exchange uses only after wait().
class CommunicationThread {
 public:
  /// `beside`: whether there is a thread; else start() runs the exchange. `most`: start() waits
  /// while so many have not ended.
  explicit CommunicationThread(bool beside, size_t most = SIZE_MAX)
      : beside_(beside), most_(most), state_(std::make_unique<State>()) {}
  /// Waits for exchanges that were started. In a process that was forked meanwhile, leaves them to
  /// the other one.
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  /// `exchange`: its name, bytes and bucket. Throws ProviderError in a process that was forked.
  void start(Exchange exchange, std::function<void()> run);
  /// Until all have ended. Throws the error of the one that failed.
  void wait();
  /// The exchanges that have ended since the last call, in order. After wait().
  std::vector<Exchange> take_ended();

 private:
  struct Job {
    Exchange exchange;
    std::function<void()> run;
  };
  void run_jobs();
  void run(Job& job);

  struct State {
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    std::deque<Job> jobs;  // those that have not ended, also the one that runs
    std::vector<Exchange> ended;
    std::exception_ptr error;
    bool stops = false;
    std::thread thread;
  };

  bool beside_;
  size_t most_;
  std::unique_ptr<State> state_;
  pid_t process_ = 0;  // of the thread
};

}  // namespace steep
