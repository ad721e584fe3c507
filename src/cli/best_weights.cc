#include "cli/best_weights.h"

namespace steep::cli {

void BestWeights::remember(const TrainingSession& session) {
  weights_.clear();
  for (const std::string& name : session.parameter_names())
    weights_[name] = session.state(name).clone();
  for (const std::string& name : session.statistic_names())
    weights_[name] = session.state(name).clone();
  averages_.clear();
  for (const std::string& name : session.optimizer_state_names()) {
    if (name.starts_with("ema/")) averages_[name] = session.state(name).clone();
  }
}

void BestWeights::restore(TrainingSession& session) const {
  session.set_weights(weights_);
  if (!averages_.empty()) session.set_optimizer_state(averages_);
}

}  // namespace steep::cli
