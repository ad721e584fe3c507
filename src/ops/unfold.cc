#include "ops/unfold.h"

#include "ops/build.h"

namespace steep {

std::vector<Value> unfold(const Graph& body, std::span<const Value> operands, Graph& g) {
  std::vector<Value> here(body.value_count());  // id of a body value → its copy in g
  for (size_t i = 0; i < operands.size(); ++i) here[body.inputs()[i].id()] = operands[i];
  auto copy_of = [&](Value v) {
    if (v && !here[v.id()]) here[v.id()] = g.add_constant(*v.tensor(), v.name());
    return v ? here[v.id()] : Value();
  };
  for (Node inner : body.nodes()) {
    std::vector<Value> inputs;
    for (int i = 0; i < inner.input_count(); ++i) inputs.push_back(copy_of(inner.input(i)));
    const auto outputs = apply_n(inner.op(), inputs, inner.output_count(), inner.attrs());
    for (int i = 0; i < inner.output_count(); ++i) {
      if (inner.output(i)) here[inner.output(i).id()] = outputs[static_cast<size_t>(i)];
    }
  }
  std::vector<Value> results;
  for (const Output& y : body.outputs()) results.push_back(copy_of(y.value));
  return results;
}

}  // namespace steep
