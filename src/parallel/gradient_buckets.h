// Gradients on their way to other processes while backward makes more of them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/communication_thread.h"
#include "steep/parallel.h"

namespace steep {

/// Divides the gradients of a run into buckets, and exchanges each once it is complete. All
/// processes have the same buckets and exchange them in the same order, in whatever order their
/// backwards make gradients. A process that fails in between calls drop(), then Peers::tell().
class GradientBuckets {
 public:
  virtual ~GradientBuckets() = default;
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Begins a run, whose gradients count `factor` times. `sums`: of the gradients that this process
  /// adds up, so far; `fresh`: they start at 0.
  virtual void begin(std::map<std::string, Tensor> sums, bool fresh, double factor) = 0;
  /// The gradient of this parameter is there. Does nothing unless a run has begun.
  void complete(const std::string& parameter);
  /// Exchanges what is left; then all sums are there. Throws the error of an exchange.
  void end();
  /// Ends without further exchanges, once those that have begun are over.
  void drop() noexcept;
  /// The exchanges of the last run.
  std::vector<Exchange> take_ended() { return thread_.take_ended(); }

 protected:
  struct Item {
    std::string parameter;
    size_t owner;  ///< a rank; 0 without owners
    DType dtype;
    Dims dims;
  };
  using Shares = std::vector<std::vector<std::string>>;
  struct Size {
    size_t bytes;        ///< the most of a bucket, unless it is one tensor
    bool of_all_owners;  ///< it may have more, until it has something of each owner
  };
  /// `order`: of the gradients in buckets. `shares`: the parameters of each owner; empty: none.
  /// `most_waiting`: of buckets that are complete but not exchanged.
  GradientBuckets(std::shared_ptr<Peers> peers, const std::vector<std::string>& order,
                  const Shares& shares, const TrainingSession& session, Size size,
                  size_t most_waiting);

  void begin_run(double factor);
  const Item& item_of(const std::string& parameter) const;
  /// All that have an item.
  std::vector<std::string> parameters() const;
  /// Of the gradient of a parameter.
  static DType dtype_of_gradient(const Tensor& parameter);
  double factor() const { return factor_; }
  Peers& peers() const { return *peers_; }

  /// What exchanges these gradients; called by the thread of backward, and run by another. Those
  /// that are not complete have no gradient in this run.
  virtual std::function<void()> exchange_of(const std::vector<Item>& items) = 0;

 private:
  struct Bucket {
    std::vector<Item> items{};
    size_t missing = 0;  ///< in this run
  };
  void start_next();

  std::shared_ptr<Peers> peers_;  ///< the session may outlive DataParallel
  std::vector<Bucket> buckets_;
  std::map<std::string, std::pair<size_t, size_t>> places_;  ///< bucket and item of a parameter
  double factor_ = 1;
  size_t next_;  ///< the bucket to exchange; none left: no run
  CommunicationThread thread_;
};

}  // namespace steep
