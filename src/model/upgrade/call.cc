#include "model/upgrade/call.h"

#include <fmt/format.h>

#include "model/read/quote.h"
#include "ops/shape_arithmetic.h"
#include "steep/error.h"

namespace steep {

Value Call::any(size_t i) const { return has(i) ? writer.materialise(inputs[i]) : Value(); }

Value Call::in(size_t i) const {
  if (!has(i)) return {};
  if (inputs[i].items() != nullptr || inputs[i].value().type().kind != Kind::tensor) {
    fail("An input of a tensor operator is not a tensor.", fmt::format("a tensor as input {}", i),
         inputs[i].items() != nullptr ? "a sequence" : to_string(inputs[i].value().type()),
         "Export the model again; its types do not fit.");
  }
  return inputs[i].value();
}

Value Call::need(size_t i) const {
  Value v = in(i);
  if (!v)
    fail("A node lacks an input.", fmt::format("an input {}", i), "none",
         "Export the model again.");
  return v;
}

std::vector<Value> Call::emit(const std::string& canonical, std::vector<Value> in, Attrs with,
                              int count) const {
  return writer.emit(*this, canonical, std::move(in), std::move(with), count);
}

Value Call::ints(const Ints& values) const {
  return graph.add_constant(Tensor::from(values, {static_cast<int64_t>(values.size())}),
                            name + "/ints");
}

std::vector<Binding> Call::as_is() const {
  std::vector<Value> values;
  for (size_t i = 0; i < inputs.size(); ++i) values.push_back(in(i));
  const std::vector<Value> out = emit(op, std::move(values), attrs, outputs());
  return {out.begin(), out.end()};
}

void Call::fail(std::string what, std::string expected, std::string received,
                std::string remedy) const {
  throw ModelError({.what = std::move(what),
                    .node = quote(name),
                    .op = quote(op),
                    .expected = std::move(expected),
                    .received = std::move(received),
                    .remedy = std::move(remedy)});
}

std::optional<Ints> known_ints(Value v) {
  if (!v) return std::nullopt;
  if (v.role() == Role::constant && v.tensor() != nullptr) {
    if (is_float(v.dtype()) || is_narrow_float(v.dtype())) return std::nullopt;
    return v.tensor()->to_ints();
  }
  const auto elements = elements_of(v);
  if (!elements) return std::nullopt;
  Ints values;
  for (const Element& e : *elements) {
    if (!e.number) return std::nullopt;
    values.push_back(*e.number);
  }
  return values;
}

}  // namespace steep
