// What weights inside of the bodies of If, Loop and Scan are called.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>

namespace steep {

/// Names of initializers, and of what Constant nodes make, inside of bodies of the model's own
/// graph. Such a one is called as in the file where nothing of the model's graph and no other of
/// its kind is called so, else "node/then_branch/name" by the node that has the body (the nodes,
/// where bodies are within bodies).
class BodyNames {
 public:
  BodyNames() = default;
  /// Of a serialised model that scan_model() took.
  explicit BodyNames(std::span<const std::byte> model);

  /// Of `name` in the body at `path` ("node/then_branch/"); "" where it cannot be told from
  /// another.
  const std::string& of(const std::string& path, const std::string& name) const;

 private:
  std::map<std::pair<std::string, std::string>, std::string> shown_;
};

}  // namespace steep
