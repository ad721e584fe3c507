// Common subexpressions: a node with the operator, attributes and inputs of an earlier node is
// removed. Random nodes differ in their attribute `stream`, so they need no special case.

#include <fmt/format.h>

#include <unordered_map>

#include "passes/pipeline.h"

namespace steep {
namespace {

void append(std::string& key, const Attr& attr, bool* comparable) {
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, Tensor> || std::is_same_v<T, Body>) {
          *comparable = false;
        } else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
          key += fmt::format("{};", v);
        } else if constexpr (std::is_same_v<T, std::string>) {
          key += fmt::format("{}:{};", v.size(), v);
        } else {
          for (const auto& e : v) key += fmt::format("{},", e);
          key += ';';
        }
      },
      attr);
}

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
    bool comparable = true;
    std::string key = n.op() + "|";
    for (int i = 0; i < n.input_count(); ++i) {
      if (Value x = n.input(i); x && replacement[x.id()]) n.set_input(i, replacement[x.id()]);
      key += key_of(n.input(i)) + ",";
    }
    key += fmt::format("|{}|", n.output_count());
    for (const auto& [name, attr] : n.attrs()) {
      key += name + "=";
      append(key, attr, &comparable);
    }
    if (!comparable) continue;
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
