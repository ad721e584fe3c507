#include "ir/splice.h"

#include <cstdint>
#include <unordered_map>

namespace steep {

std::vector<Value> splice(const Graph& from, Graph& to, std::span<const Value> operands) {
  std::unordered_map<uint32_t, Value> there;
  for (size_t i = 0; i < operands.size(); ++i) there[from.inputs()[i].id()] = operands[i];
  auto find = [&](Value v) -> Value {
    if (!v) return {};
    auto [it, fresh] = there.try_emplace(v.id());
    if (fresh) it->second = to.add_constant(*v.tensor());
    return it->second;
  };
  for (Node n : from.nodes()) {
    std::vector<Value> inputs;
    for (int i = 0; i < n.input_count(); ++i) inputs.push_back(find(n.input(i)));
    const Node copy = to.add_node(n.op(), inputs, n.output_count(), n.attrs());
    for (int i = 0; i < n.output_count(); ++i) {
      if (!n.output(i)) continue;
      to.set_type(copy.output(i), n.output(i).type());
      if (const Shape* contents = from.contents(n.output(i)))
        to.set_contents(copy.output(i), *contents);
      there[n.output(i).id()] = copy.output(i);
    }
  }
  std::vector<Value> outputs;
  for (const Output& o : from.outputs()) outputs.push_back(find(o.value));
  return outputs;
}

}  // namespace steep
