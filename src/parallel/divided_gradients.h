// Gradients on their way to the processes that own their parameters (ZeRO-2).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/gradient_buckets.h"

namespace steep {

/// Sends the gradients of a part of a step to their owners, each of which adds up its own.
class DividedGradients : public GradientBuckets {
 public:
  /// `shares`: the parameters of each rank.
  DividedGradients(std::shared_ptr<Peers> peers, const Shares& shares,
                   const TrainingSession& session, DType wire, size_t bucket_bytes = kBucketBytes);

  /// `sums`: of this rank's parameters over all processes so far.
  void begin(std::map<std::string, Tensor> sums, bool fresh, double factor) override;
  void take(const std::string& parameter, const Tensor& gradient);
  /// Throws ModelError unless the parameters of `session` have the types of the first one's.
  void require_types(const TrainingSession& session) const;

  /// So few that what waits is small beside a share; a larger gradient is alone.
  static constexpr size_t kBucketBytes = 4u << 20;

 protected:
  std::function<void()> exchange_of(const std::vector<Item>& items) override;

 private:
  DType wire_;
  std::map<std::string, Tensor> sums_, waiting_;
};

}  // namespace steep
