#include "train/updates.h"

#include <algorithm>

#include "ops/build.h"
#include "steep/error.h"
#include "train/name_suggestions.h"

namespace steep {
namespace {

/// False if no value can have both types.
bool may_be_equal(const Type& a, const Type& b) {
  if (a.dtype != b.dtype || a.kind != b.kind) return false;
  if (!a.shape || !b.shape) return true;
  return std::equal(a.shape->begin(), a.shape->end(), b.shape->begin(), b.shape->end(),
                    [](const Dim& x, const Dim& y) {
                      return !x.known() || !y.known() || x.value() == y.value();
                    });
}

}  // namespace

Value output_named(const Graph& graph, const std::string& name) {
  std::vector<std::string> names;
  for (const Output& o : graph.outputs()) {
    if (o.name == name) return o.value;
    names.push_back(o.name);
  }
  throw ModelError(ErrorParts{.what = "The model has no such output.",
                              .node = name,
                              .expected = nearest_names(name, names),
                              .received = name});
}

void check_updates(const Graph& graph, std::span<const std::string> initializers,
                   const TrainingOptions& options) {
  const std::vector<std::string> names(initializers.begin(), initializers.end());
  const std::vector<std::string>& trained = options.trainable;
  for (const auto& [name, output] : options.updates) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw ModelError(ErrorParts{.what = "The model has no such initializer.",
                                  .node = name,
                                  .expected = nearest_names(name, names),
                                  .received = name});
    }
    if (std::find(trained.begin(), trained.end(), name) != trained.end()) {
      throw ModelError(ErrorParts{.what = "A value that the optimizer writes has a second update.",
                                  .node = name,
                                  .received = "a name in both `trainable` and `updates`"});
    }
    const Type before = graph.find(name).type(), after = output_named(graph, output).type();
    if (!may_be_equal(before, after)) {
      throw ModelError(
          ErrorParts{.what = "An update has another type than the value that it writes.",
                     .node = name,
                     .expected = to_string(before),
                     .received = to_string(after)});
    }
  }
}

void add_updates(Graph& graph, const TrainingOptions& options) {
  for (const auto& [name, output] : options.updates) {
    Graph::Scope scope(graph, Phase::backward, "update/" + name);
    const Value state = graph.find(name);
    graph.add_update(state, apply("steep.Assign", {state, output_named(graph, output)}));
  }
}

}  // namespace steep
