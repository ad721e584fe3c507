// Common subexpressions: a node with the operator, attributes and inputs of an earlier node is
// removed. Random nodes differ in their attribute `stream`, so they need no special case.

#include <fmt/format.h>

#include <unordered_map>

#include "ir/comparison_key.h"
#include "passes/pipeline.h"

namespace steep {
namespace {

/// Constants with equal bytes count as the same value.
std::string key_of(Value v) {
  constexpr int64_t kSmall = 64;
  if (!v) return "_";
  if (v.role() == Role::constant && v.tensor()->size() <= kSmall) {
    const Tensor& t = *v.tensor();
    return fmt::format("c{}{}{}", static_cast<int>(t.dtype()), to_string(t.dims()),
                       std::string_view(static_cast<const char*>(t.data()), t.nbytes()));
  }
  return std::to_string(v.id());
}

}  // namespace

void remove_duplicates(Graph& graph) {
  std::unordered_map<std::string, Node> nodes;
  std::vector<Value> replacement(graph.value_count());
  for (Node n : graph.nodes()) {
    const std::optional<std::string> attrs = comparison_key(n.attrs());
    std::string key = n.op() + "|";
    for (int i = 0; i < n.input_count(); ++i) {
      if (Value x = n.input(i); x && replacement[x.id()]) n.set_input(i, replacement[x.id()]);
      key += key_of(n.input(i)) + ",";
    }
    if (!attrs) continue;
    key += fmt::format("|{}|{}", n.output_count(), *attrs);
    auto [it, fresh] = nodes.try_emplace(std::move(key), n);
    if (fresh) continue;
    for (int i = 0; i < n.output_count(); ++i) {
      if (n.output(i)) replacement[n.output(i).id()] = it->second.output(i);
    }
  }
  std::vector<Output> outputs = graph.outputs();
  for (Output& o : outputs) {
    if (replacement[o.value.id()]) o.value = replacement[o.value.id()];
  }
  graph.set_outputs(std::move(outputs));
  std::vector<Update> updates = graph.updates();
  for (Update& u : updates) {
    if (replacement[u.value.id()]) u.value = replacement[u.value.id()];
  }
  graph.set_updates(std::move(updates));
}

}  // namespace steep
