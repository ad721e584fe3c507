// Chooses the initializers that are trained.
#pragma once

#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

struct ChosenParameters {
  std::vector<Value> parameters;  ///< in the order of the file
  /// Constants that could be trained but are not, because of their role or their rank of 0. The
  /// user is told of them.
  std::vector<LeftOut> left_out;
};

/// The initializers that a list of the options names.
struct Named {
  std::set<std::string> exact{}, by_pattern{};
  bool has(const std::string& name) const {
    return exact.count(name) != 0 || by_pattern.count(name) != 0;
  }
  std::set<std::string> names() const {
    std::set<std::string> names = exact;
    names.insert(by_pattern.begin(), by_pattern.end());
    return names;
  }
};

/// A name with a * that is not one of `all` is a pattern. Throws ModelError for a name or pattern
/// that is not in `all`; the error suggests only the first `limit` of them.
Named named_by(std::span<const std::string> patterns, std::span<const std::string> all,
               size_t limit);

/// The constants of `graph` that TrainingOptions selects and on which one of `losses` depends
/// differentiably. If `trainable` has names, exactly these are chosen. Otherwise it is every float
/// initializer of rank 1 or more that acts as a weight (train/roles.h), without those in `frozen`.
/// A name with a * that no initializer has is a pattern; in `trainable` it stands for the
/// initializers that match it and act as weights. `constants`: the Constant nodes of the file, by
/// the names of their outputs. `inside`: constants in bodies, which cannot be trained; they are
/// added to `left_out`. Integer weights are, too, unless train_quantised() has made them floats.
/// Throws ModelError: an unknown name (the error lists similar ones), a name that is no float
/// initializer, nothing left to train; quantised operators, unless `trainable` has names.
ChosenParameters choose_parameters(const Graph& graph, std::span<const Value> losses,
                                   std::span<const std::string> initializers,
                                   std::span<const std::string> constants,
                                   const TrainingOptions& options,
                                   std::span<const LeftOut> inside = {});

/// Replaces patterns in the names of groups by the matching names. Throws ModelError for unknown
/// names.
void expand_groups(std::vector<ParameterGroup>* groups, std::span<const std::string> initializers,
                   std::span<const std::string> constants);

/// All names in the options' lists: ImportOptions::named.
std::set<std::string> named_in(const TrainingOptions& options);

/// Converts ImportedModel::inside.
std::vector<LeftOut> left_inside(std::span<const std::pair<std::string, std::string>> inside);

/// One line per reason: "not trained: mean, std (shifts or scales an input)".
std::vector<std::string> describe(std::span<const LeftOut> left_out);

}  // namespace steep
