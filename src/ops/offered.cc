#include "ops/offered.h"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "ops/build.h"
#include "ops/unfold.h"
#include "steep/error.h"

namespace steep {
namespace {

struct Offered {
  std::string name;
  OfferedTypes types;
  OpDef def{};
};

struct Table {
  std::shared_mutex mutex;
  std::deque<Offered> all;  // a deque, so that addresses stay valid
  std::map<std::string_view, const Offered*> by_name;
};

/// Never destroyed: threads may use it while the process exits.
Table& table() {
  static auto* const all = new Table;
  return *all;
}

const Offered* find(std::string_view name) {
  Table& t = table();
  const std::shared_lock lock(t.mutex);
  const auto it = t.by_name.find(name);
  return it == t.by_name.end() ? nullptr : it->second;
}

/// The types of the decomposition's results, for the types of the node's operands.
std::vector<Type> types_of_parts(Node n) {
  Graph scratch;
  std::vector<Value> operands;
  for (int i = 0; i < n.input_count(); ++i) {
    const Value x = n.input(i);
    if (!x) continue;
    if (const Tensor* value = constant(x)) {
      operands.push_back(scratch.add_constant(*value));
      continue;
    }
    operands.push_back(scratch.add_input(x.name(), x.type()));
    if (const Shape* contents = n.graph().contents(x))
      scratch.set_contents(operands.back(), *contents);
  }
  std::vector<Type> types;
  for (Value y : unfold(n.attrs().body(kParts), operands, scratch)) types.push_back(y.type());
  return types;
}

std::vector<Type> infer(Node n) {
  const Offered& op = *find(n.op());
  std::vector<Type> types = op.types ? op.types(n) : std::vector<Type>{};
  if (!n.attrs().has(kParts)) return types;
  std::vector<Type> parts = types_of_parts(n);
  for (size_t i = 0; i < types.size(); ++i) {
    require_agreement(n, static_cast<int>(i), types[i], parts[i]);
    if (!types[i].shape) continue;
    // Take extents from the provider's types where the decomposition leaves them unknown.
    for (size_t axis = 0; parts[i].shape && axis < types[i].shape->size(); ++axis) {
      if ((*parts[i].shape)[axis].known()) continue;
      (*parts[i].shape)[axis] = (*types[i].shape)[axis];
    }
    if (!parts[i].shape) parts[i].shape = types[i].shape;
  }
  return parts;
}

std::vector<Value> decompose(Node n) {
  std::vector<Value> operands;
  for (int i = 0; i < n.input_count(); ++i) {
    if (n.input(i)) operands.push_back(n.input(i));
  }
  std::vector<Value> parts = unfold(n.attrs().body(kParts), operands, n.graph());
  for (int i = 0; i < n.output_count(); ++i)
    require_agreement(n, i, n.output(i).type(), parts[static_cast<size_t>(i)].type());
  return parts;
}

}  // namespace

void require_agreement(Node n, int i, const Type& type, const Type& parts) {
  bool agree = type.dtype == parts.dtype;
  if (type.shape && parts.shape) {
    agree = agree && type.shape->size() == parts.shape->size();
    for (size_t axis = 0; agree && axis < type.shape->size(); ++axis) {
      const Dim &a = (*type.shape)[axis], &b = (*parts.shape)[axis];
      agree = !a.known() || !b.known() || a.value() == b.value();
    }
  }
  if (agree) return;
  throw ProviderError(
      {.what = "A provider's type function and its decomposition give different types.",
       .node = n.name(),
       .op = n.op(),
       .expected = fmt::format("{} as output {}", to_string(parts), i),
       .received = to_string(type),
       .remedy = "Ask the plug-in's author."});
}

void offer_op(const std::string& name, OfferedTypes types, bool has_decomposition) {
  Table& t = table();
  const std::unique_lock lock(t.mutex);
  Offered& op = t.all.emplace_back(Offered{name, std::move(types)});
  op.def = {.name = op.name, .infer = infer, .decompose = has_decomposition ? decompose : nullptr};
  t.by_name.emplace(op.name, &op);
}

const OpDef* find_offered(std::string_view name) {
  const Offered* op = find(name);
  return op == nullptr ? nullptr : &op->def;
}

}  // namespace steep
