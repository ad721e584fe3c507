// The weights of the best epoch, which --early-stopping exports.
#pragma once

#include <map>
#include <string>

#include "steep/steep.h"

namespace steep::cli {

class BestEpoch {
 public:
  /// Copies the session's weights, running statistics and averages of weights.
  void remember(const TrainingSession& session);
  bool empty() const { return weights_.empty(); }
  /// Sets the session's weights to the copies. Not to be called if empty().
  void restore(TrainingSession* session) const;

 private:
  std::map<std::string, Tensor> weights_, averages_;
};

}  // namespace steep::cli
