// The object behind a steep_training.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_api/arrays.h"
#include "c_api/handles.h"
#include "steep/steep.h"
#include "steep_c.h"

namespace steep::c_api {

class Training : public Object {
 public:
  static constexpr std::string_view kKind = "steep_training";
  explicit Training(TrainingSession training_session)
      : session(std::move(training_session)),
        inputs(session.input_info()),
        outputs(session.output_info()),
        parameters(session.parameter_names()),
        statistics(session.statistic_names()),
        state(session.optimizer_state_names()),
        adapted(session.adapted_names()),
        warnings(session.warnings()),
        left_out(session.left_out()),
        step_outputs(session.options().step_outputs) {}
  std::string_view kind() const override { return kKind; }

  TrainingSession session;
  const Values inputs;
  const Values outputs;
  const Names parameters;
  const Names statistics;
  const Names state;
  const Names adapted;
  const Names warnings;
  const Reasons left_out;
  const std::vector<std::string> step_outputs;
};

/// Throws ArgumentError for an invalid handle.
inline std::shared_ptr<Training> session_of(const steep_training* handle) {
  return object<Training>(handle);
}

}  // namespace steep::c_api
