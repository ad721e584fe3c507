#include "cli/finite_weights.h"

#include <fmt/format.h>

#include "steep/error.h"
#include "train/finite.h"

namespace steep::cli {

FiniteWeights::FiniteWeights(const TrainingSession& session) : session_(session) {
  for (const std::string& name : session.parameter_names()) {
    if (!all_finite(session.state(name))) infinite_.insert(name);
  }
}

void FiniteWeights::require() const {
  for (const std::string& name : session_.parameter_names()) {
    if (all_finite(session_.state(name)) || infinite_.count(name) != 0) continue;
    throw DataError(ErrorParts{
        .what = fmt::format("The weights after step {} are not finite; they were not written.",
                            session_.step_count()),
        .node = name,
        .expected = "finite weights",
        .received = "NaN or infinity",
        .remedy = "Lower the learning rate or clip gradients; --check-finite stops at the step "
                  "that does it."});
  }
}

}  // namespace steep::cli
