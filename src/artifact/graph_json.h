// Graphs of an artifact as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace steep {

using Json = nlohmann::ordered_json;

/// Throws CheckpointError.
[[noreturn]] void throw_damaged(const std::string& what);

/// The tensors of an artifact: each once, whoever refers to it.
class ArtifactTensors {
 public:
  /// Its number. A tensor of the same type and bytes has one already. `unique`: not so, since it
  /// will be written to.
  size_t add(const Tensor& tensor, bool unique = false);
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<Tensor> tensors_;
  std::unordered_multimap<uint32_t, size_t> by_sum_;  // CRC-32C → number
};

/// `views` may be null, for the body of a node. Throws ModelError for a type that is not concrete.
Json graph_to_json(const Graph& graph, const std::unordered_map<uint32_t, Ints>* views,
                   ArtifactTensors& tensors);

/// A type, as [name, dtype, extents]; throws CheckpointError where it is none.
Type type_from_json(const Json& dtype, const Json& dims);

/// The reverse. Values are made before they are read; none is made twice; phases are in order.
/// `tensors` by their numbers, undefined where a state has them. `states`: those of the artifact,
/// by name and type; null in a body. Throws CheckpointError.
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
