// Names of weights inside the bodies of If, Loop and Scan.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>

namespace steep {

/// Names of initializers, and of outputs of Constant nodes, inside bodies of the model's own graph.
/// The name is that in the file if it is unique among these and in the model's graph. Otherwise it
/// is "node/then_branch/name", with the name of the node that has the body (of all nodes, for
/// nested bodies).
class BodyNames {
 public:
  BodyNames() = default;
  /// Names in a serialised model that passed scan_model().
  explicit BodyNames(std::span<const std::byte> model);

  /// The name for `name` in the body at `path` ("node/then_branch/"); "" when it would be
  /// ambiguous.
  const std::string& of(const std::string& path, const std::string& name) const;

 private:
  std::map<std::pair<std::string, std::string>, std::string> shown_;
};

}  // namespace steep
