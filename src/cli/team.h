// The processes of `steep train --parallel`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "steep/parallel.h"

namespace steep::cli {

/// Adds --parallel.
void add_parallel_option(CLI::App& app, std::string& way);

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
  /// The sum of a number over all processes.
  double sum(double number) const;
  /// The number of rank 0; `find` is called there only.
  double of_lead(const std::function<double()>& find) const;

  /// Calls `run`, and waits at its end for the others. An error is told to the others before it is
  /// thrown.
  int together(const std::function<int()>& run) const;

 private:
  std::shared_ptr<Peers> peers_;
};

}  // namespace steep::cli
