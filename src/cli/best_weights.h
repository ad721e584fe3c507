// The weights of the best epoch so far, for --early-stopping.
#pragma once

#include <map>
#include <string>

#include "steep/steep.h"

namespace steep::cli {

class BestWeights {
 public:
  bool empty() const { return weights_.empty(); }
  /// Copies the weights, running statistics and moving averages of this epoch.
  void remember(const TrainingSession& session);
  /// REQUIRES: not empty().
  void restore(TrainingSession& session) const;

 private:
  std::map<std::string, Tensor> weights_, averages_;
};

}  // namespace steep::cli
