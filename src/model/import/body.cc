#include "model/import/body.h"

#include <fmt/format.h>

#include "ir/seed.h"
#include "model/read/quote.h"
#include "steep/error.h"

namespace steep {

OpenBody::OpenBody(Importer& importer)
    : importer_(importer), outer_(importer.graph_), outside_(importer.body_) {
  importer.count_inlined(kBodyNodes);
  graph_->node_limit = importer.limits().max_nodes;
  importer.graph_ = graph_.get();
  importer.body_ = this;
}

OpenBody::~OpenBody() {
  importer_.graph_ = outer_;
  importer_.body_ = outside_;
}

Value OpenBody::capture(Value v) {
  if (&v.graph() == graph_.get()) return v;
  const Value outer = &v.graph() == outer_ ? v : outside_->capture(v);
  if (const auto it = inner_of_.find(outer.id()); it != inner_of_.end()) return it->second;
  const bool weight =
      outside_ == nullptr && is_float(outer.dtype()) && importer_.weights().contains(outer);
  Value inner;
  if (outer.role() == Role::constant && !weight) {
    inner = graph_->add_constant(*outer.tensor(), outer.name());
  } else {
    inner = graph_->add_input(outer.name(), importer_.named_extents(outer));
    if (const Shape* contents = outer.graph().contents(outer))
      graph_->set_contents(inner, *contents);
    outer_of_[inner.id()] = outer;
  }
  inner_of_[outer.id()] = inner;
  return inner;
}

void OpenBody::add_outputs(const onnx::GraphProto& body, const NameScope& scope) {
  for (const auto& output : body.output()) {
    const Binding* b = scope.find(output.name());
    if (b == nullptr || !*b) {
      throw ModelError({.what = "An output of a body has a name that nothing defines.",
                        .received = quote(output.name()),
                        .remedy = "Export the model again."});
    }
    graph_->add_output(output.name(), importer_.materialise(*b));
  }
  graph_->prune();
}

std::vector<Value> OpenBody::captured(size_t own) const {
  std::vector<Value> values;
  for (size_t i = own; i < graph_->inputs().size(); ++i) {
    const Value input = graph_->inputs()[i];
    // The seed, an input that random operators add.
    const auto it = outer_of_.find(input.id());
    values.push_back(it != outer_of_.end() ? it->second : seed_of(*outer_));
  }
  return values;
}

void require_same_element(const Type& a, const Type& b, const std::string& what) {
  if (a.dtype == b.dtype) return;
  throw ModelError({.what = what,
                    .expected = to_string(a),
                    .received = to_string(b),
                    .remedy = "Export the model again; its file does not follow the ONNX "
                              "standard."});
}

}  // namespace steep
