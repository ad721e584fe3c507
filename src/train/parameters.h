// Which initializers are trained.
#pragma once

#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

struct Choice {
  std::vector<Value> parameters;  ///< in the order of the file
  /// What only its role, or a rank of 0, keeps from being trained: to be said to the user.
  std::vector<LeftOut> left_out;
};

/// The constants of `graph` that TrainingOptions selects and on which one of `losses` depends
/// differentiably. Names in `trainable` are taken as they are, and nothing else is. Without, it is
/// every float initializer of rank 1 or more that acts as a weight, as train/roles.h has it; less
/// `frozen`. A name with a * that no initializer has stands for all that it matches; in
/// `trainable`, for those of them that act as weights. `constants`: the Constant nodes of the file,
/// by the names of their outputs. `inside`: what stays in bodies and cannot be trained, which is
/// then left out, too. Throws ModelError: an unknown name (with those most like it), a name that is
/// no float initializer, nothing left to train.
Choice choose_parameters(const Graph& graph, std::span<const Value> losses,
                         std::span<const std::string> initializers,
                         std::span<const std::string> constants, const TrainingOptions& options,
                         std::span<const LeftOut> inside = {});

/// Replaces patterns in the names of groups by what they match. Throws ModelError as above.
void expand_groups(std::vector<ParameterGroup>* groups, std::span<const std::string> initializers,
                   std::span<const std::string> constants);

/// What the options name: ImportOptions::named.
std::set<std::string> named_in(const TrainingOptions& options);

/// Of ImportedModel::inside.
std::vector<LeftOut> left_inside(std::span<const std::pair<std::string, std::string>> inside);

/// One line a reason: "not trained: mean, std (shifts or scales an input)".
std::vector<std::string> describe(std::span<const LeftOut> left_out);

}  // namespace steep
