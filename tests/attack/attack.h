// Shared by the attack tests: the number of cases, and the report line that `make attack` collects.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace steep::testing {

/// Whether to run the long version: STEEP_ATTACK=long (`make attack`). The default is short.
inline bool attack_at_length() {
  const char* wanted = std::getenv("STEEP_ATTACK");
  return wanted != nullptr && std::string_view(wanted) == "long";
}
template <typename T>
T attack_size(T few, T many) {
  return attack_at_length() ? many : few;
}

/// Counts the cases of one attack. A finding fails the test; the destructor prints the report line.
class AttackReport {
 public:
  explicit AttackReport(std::string_view name) : name_(name) {}
  ~AttackReport() {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin_;
    fmt::print("ATTACK {} {} {} {:.1f}\n", name_, cases_, findings_, time.count());
    std::fflush(stdout);
  }
  AttackReport(const AttackReport&) = delete;
  AttackReport& operator=(const AttackReport&) = delete;

  /// Counts one case. `good`: no finding.
  void count(bool good, std::string_view what) {
    ++cases_;
    if (good) return;
    ++findings_;
    if (findings_ <= 20) ADD_FAILURE() << name_ << ": " << what;
  }

 private:
  std::string_view name_;
  uint64_t cases_ = 0;
  uint64_t findings_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace steep::testing
