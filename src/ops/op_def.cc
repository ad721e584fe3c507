#include "ops/op_def.h"

#include <algorithm>

#include "steep/error.h"

namespace steep {
namespace {

const Attribute* find_attribute(std::string_view op, std::string_view name) {
  const OpDef* def = find_op(op);
  if (def == nullptr) return nullptr;
  const auto found = std::find_if(def->attributes.begin(), def->attributes.end(),
                                  [&](const Attribute& a) { return a.name == name; });
  return found == def->attributes.end() ? nullptr : &*found;
}

template <typename T>
T declared(std::string_view op, std::string_view name) {
  const Attribute* attribute = find_attribute(op, name);
  const T* value = attribute == nullptr ? nullptr : std::get_if<T>(&attribute->otherwise);
  if (value == nullptr) {
    throw InternalError({.what = "An operator does not declare an attribute that is read.",
                         .op = std::string(op),
                         .expected = "an attribute of its OpDef",
                         .received = std::string(name)});
  }
  return *value;
}

}  // namespace

int64_t integer_of(Node n, std::string_view name) {
  return n.attrs().integer(name, declared<int64_t>(n.op(), name));
}

double real_of(Node n, std::string_view name) {
  return n.attrs().real(name, declared<double>(n.op(), name));
}

std::string text_of(Node n, std::string_view name) {
  return n.attrs().string(name, declared<std::string_view>(n.op(), name));
}

int64_t default_integer(std::string_view op, std::string_view name) {
  return declared<int64_t>(op, name);
}

double default_real(std::string_view op, std::string_view name) {
  return declared<double>(op, name);
}

Attrs with_defaults(std::string_view op, const Attrs& attrs) {
  Attrs all = attrs;
  const OpDef* def = find_op(op);
  if (def == nullptr) return all;
  for (const Attribute& a : def->attributes) {
    if (all.has(a.name)) continue;
    std::visit(
        [&](auto value) {
          if constexpr (std::is_same_v<decltype(value), std::string_view>) {
            all.set(a.name, std::string(value));
          } else {
            all.set(a.name, value);
          }
        },
        a.otherwise);
  }
  return all;
}

bool declares(std::string_view op, std::string_view name) {
  return find_attribute(op, name) != nullptr;
}

}  // namespace steep
