// How long threads that wait for each other are to spin before they sleep.
#pragma once

namespace steep {

/// Looks, a few times a second, at what part of a thread's time another process took. One busy
/// process beside `threads` threads on as many processors takes 1 / (threads + 1). From there on, a
/// thread that spins for long takes the processor from the one that it waits for. Without such a
/// neighbour, spinning saves the time of waking up.
class SpinRule {
 public:
  /// `delayed`: of the time in which the thread could have run, the part in which it did not.
  /// Returns whether to spin briefly from now on. Long spins return after several calm looks, since
  /// a neighbour may be beside another thread for a while.
  bool look(double delayed, int threads) {
    const double neighbour = 1.0 / (threads + 1);
    calm_ = delayed < neighbour / 2 ? calm_ + 1 : 0;
    briefly_ = delayed > neighbour || (briefly_ && calm_ < kCalm);
    return briefly_;
  }

 private:
  static constexpr int kCalm = 10;
  bool briefly_ = false;
  int calm_ = 0;  // looks in a row
};

}  // namespace steep
