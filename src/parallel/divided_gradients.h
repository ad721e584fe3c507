// Gradients on their way to the processes that own their parameters (ZeRO-2).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "steep/parallel.h"

namespace steep {

/// Sends the gradients of a part of a step to their owners in buckets, each as soon as it is
/// complete. All processes have the same buckets, and send them in the same order, in whatever
/// order their backwards make gradients. A process that fails in between calls Peers::tell().
class DividedGradients {
 public:
  /// `shares`: the parameters of each rank.
  DividedGradients(Peers& peers, const std::vector<std::vector<std::string>>& shares,
                   const TrainingSession& session, DType wire, size_t bucket_bytes = kBucketBytes);

  /// Begins a part, whose gradients count `factor` times. `sums`: of this rank's parameters over
  /// all processes so far; `fresh`: they start at 0.
  void begin(std::map<std::string, Tensor> sums, bool fresh, double factor);
  void take(const std::string& parameter, const Tensor& gradient);
  /// Throws ModelError unless the parameters of `session` have the types of the first one's.
  void require_types(const TrainingSession& session) const;
  /// Sends what is left. Gradients that were not taken are 0.
  void end();

  /// So few that what waits is small beside a share; a larger gradient is alone.
  static constexpr size_t kBucketBytes = 4u << 20;

 private:
  struct Item {
    std::string parameter;
    size_t owner;
    DType dtype;
    Dims dims;
  };
  struct Bucket {
    std::vector<Item> items{};
    size_t missing = 0;  ///< in this part
  };
  void send_next();

  Peers& peers_;
  DType wire_;
  std::vector<Bucket> buckets_;
  std::map<std::string, std::pair<size_t, size_t>> places_;  ///< bucket and item of a parameter
  std::map<std::string, Tensor> sums_, waiting_;
  double factor_ = 1;
  size_t next_ = 0;  ///< the bucket to send
};

}  // namespace steep
