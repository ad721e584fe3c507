// Whether the weights are still finite, before they are written over good ones.
#pragma once

#include <set>
#include <string>

#include "steep/steep.h"

namespace steep::cli {

class FiniteWeights {
 public:
  /// Leaves out weights that are not finite already (a mask). The session must outlive this object.
  explicit FiniteWeights(const TrainingSession& session);
  /// Throws DataError if a weight is not finite: such a run cannot continue.
  void require() const;

 private:
  const TrainingSession& session_;
  std::set<std::string> infinite_;
};

}  // namespace steep::cli
