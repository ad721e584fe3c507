// Sums of gradients that all processes add up while backward runs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/gradient_buckets.h"

namespace steep {

/// Adds up the sums of a session over all processes, or, with owners, sends them to these (ZeRO-1).
/// For a step of one part: its sums are final as soon as backward has the gradients.
class EarlySums : public GradientBuckets {
 public:
  /// `order`: of parameters as backward makes their gradients, the same in all processes.
  /// `shares`: the parameters of each rank; empty: all get all sums. `bucket_bytes`: 0: by the size
  /// of all sums.
  EarlySums(std::shared_ptr<Peers> peers, const std::vector<std::string>& order,
            const Shares& shares, const TrainingSession& session, DType wire,
            size_t bucket_bytes = 0);

  /// `sums`: of the session. In a process without rows they are 0.
  void begin(std::map<std::string, Tensor> sums, bool fresh, double factor) override;

 protected:
  std::function<void()> exchange_of(const std::vector<Item>& items) override;

 private:
  DType wire_;
  bool owned_;
  std::map<std::string, Tensor> sums_{};
};

}  // namespace steep
