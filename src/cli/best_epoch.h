// The weights of the best epoch, which --early-stopping exports.
#pragma once

#include <map>
#include <string>

#include "cli/position.h"
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

/// The loss that --early-stopping has waited for.
std::string awaited(const Position& position);

/// Says what a run without a best epoch exports.
constexpr const char* kNoBest =
    "no epoch had a validation loss that is a number: these are the weights of the last one";

}  // namespace steep::cli
