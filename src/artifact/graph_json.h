// Converts graphs of an artifact to JSON and back.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace steep {

using Json = nlohmann::ordered_json;

/// Throws CheckpointError that says `what` is damaged.
[[noreturn]] void throw_damaged(const std::string& what);

/// The tensors of an artifact. A tensor that several values refer to is stored once.
class ArtifactTensors {
 public:
  /// Returns the number of the tensor. Tensors with the same type and bytes get the same number,
  /// unless `unique` is set, as for tensors that a step writes to.
  size_t add(const Tensor& tensor, bool unique = false);
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<Tensor> tensors_;
  std::unordered_multimap<uint32_t, size_t> by_sum_;  // CRC-32C → number
};

/// `views` may be null, for the body of a node. Throws ModelError for a type that is not concrete.
Json graph_to_json(const Graph& graph, const std::unordered_map<uint32_t, Ints>* views,
                   ArtifactTensors& tensors);

/// A type, from [name, dtype, extents]. Throws CheckpointError if it is not valid.
Type type_from_json(const Json& dtype, const Json& dims);

/// The reverse of graph_to_json(). It checks that each value is produced once and before it is
/// read, and that phases are in order. `tensors`: by number; undefined for states. `states`: those
/// of the artifact, by name, with their types; null in a body. Throws CheckpointError.
Graph graph_from_json(const Json& json, const std::vector<Tensor>& tensors,
                      const std::unordered_map<std::string, Type>* states,
                      std::unordered_map<uint32_t, Ints>* views);

// Members of objects and elements of lists; all throw CheckpointError.
const Json& member(const Json& json, const char* key);
const Json& list(const Json& json, const char* key);
int64_t whole(const Json& json, int64_t least, int64_t most);
std::string text(const Json& json);
double real(const Json& json);
Json real_to_json(double value);

}  // namespace steep
