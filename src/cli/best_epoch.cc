#include "cli/best_epoch.h"

#include <fmt/format.h>

#include <vector>

namespace steep::cli {

void BestEpoch::remember(const TrainingSession& session) {
  weights_.clear();
  const auto keep = [&](const std::vector<std::string>& names) {
    for (const std::string& name : names) weights_[name] = session.state(name).clone();
  };
  keep(session.parameter_names());
  keep(session.statistic_names());
  averages_.clear();
  for (const std::string& name : session.optimizer_state_names()) {
    if (name.starts_with("ema/")) averages_[name] = session.state(name).clone();
  }
}

void BestEpoch::restore(TrainingSession* session) const {
  session->set_weights(weights_);
  if (!averages_.empty()) session->set_optimizer_state(averages_);
}

std::string awaited(const Position& position) {
  if (!position.best) return "validation loss that is a number";
  return fmt::format("smaller validation loss than that of epoch {}", position.best_epoch);
}

}  // namespace steep::cli
