// The processes of `steep train --parallel`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "steep/parallel.h"

namespace steep::cli {

/// Adds --parallel, --zero, --full-checkpoints and --wire-precision.
void add_parallel_options(CLI::App& app, std::string& way, int64_t& zero, bool& full,
                          std::string& wire);
/// What --zero divides, as the end of a sentence on the rows.
const char* divided_by(int64_t zero);

/// This process and the others. Without --parallel, this process alone.
class Team {
 public:
  /// `way`: the value of --parallel; "" for one process. Throws ProviderError.
  explicit Team(const std::string& way);

  int rank() const { return peers_->rank(); }
  int size() const { return peers_->size(); }
  bool alone() const { return size() == 1; }
  /// Whether this process prints progress and writes files.
  bool leads() const { return rank() == 0; }
  const std::shared_ptr<Peers>& peers() const { return peers_; }

  /// Whether `asked` is true in one process at least.
  bool any(bool asked) const;
  /// The sums of numbers over all processes.
  std::vector<double> sum(std::vector<double> numbers) const;
  /// The number of rank 0; `find` is called there only.
  double of_lead(const std::function<double()>& find) const;

  /// The text of rank 0.
  std::string text_of_lead(const std::string& text) const;

  /// Calls `run`, and waits at its end for the others. An error is told to the others before it is
  /// thrown.
  int together(const std::function<int()>& run) const;

 private:
  std::shared_ptr<Peers> peers_;
};

/// The losses of the parts of a step (--accumulate), for the mean loss of an epoch.
class PartLosses {
 public:
  /// `loss`: the mean of this process's rows; `weight`: their weight in the mean of all processes;
  /// `counts`: the weight of the part in the epoch's mean.
  void add(double loss, double weight, int64_t counts);
  void clear() { parts_.clear(); }
  struct Sum {
    double loss = 0;  ///< of loss · counts
    int64_t counts = 0;
  };
  /// Of the parts so far, which are then forgotten. All processes have added equally many.
  Sum take(const Team& team);

 private:
  struct Part {
    double loss, weight;
    int64_t counts;
  };
  std::vector<Part> parts_;
};

}  // namespace steep::cli
