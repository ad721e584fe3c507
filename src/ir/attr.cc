#include "ir/attr.h"

#include <algorithm>

#include "steep/error.h"

namespace steep {
namespace {

template <typename T>
const T* get(const Attrs& attrs, std::string_view name, const char* kind) {
  const Attr* a = attrs.find(name);
  if (a == nullptr) return nullptr;
  if (const T* value = std::get_if<T>(a)) return value;
  throw ModelError(
      {.what = "An attribute has the wrong kind.",
       .node = std::string(name),
       .expected = kind,
       .remedy = "Export the model again; its file does not follow the ONNX standard."});
}

}  // namespace

const Attr* Attrs::find(std::string_view name) const {
  for (const auto& [key, value] : items_) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Attrs::set(std::string_view name, Attr value) {
  for (auto& item : items_) {
    if (item.first == name) {
      item.second = std::move(value);
      return;
    }
  }
  items_.emplace_back(std::string(name), std::move(value));
}

void Attrs::erase(std::string_view name) {
  std::erase_if(items_, [&](const auto& item) { return item.first == name; });
}

int64_t Attrs::integer(std::string_view name, int64_t otherwise) const {
  const int64_t* v = get<int64_t>(*this, name, "an integer");
  return v ? *v : otherwise;
}

double Attrs::real(std::string_view name, double otherwise) const {
  const double* v = get<double>(*this, name, "a float");
  return v ? *v : otherwise;
}

std::string Attrs::string(std::string_view name, std::string_view otherwise) const {
  const std::string* v = get<std::string>(*this, name, "a string");
  return v ? *v : std::string(otherwise);
}

Ints Attrs::ints(std::string_view name, Ints otherwise) const {
  const Ints* v = get<Ints>(*this, name, "a list of integers");
  if (v != nullptr) return *v;
  return otherwise;
}

namespace {

template <typename T>
const T& present(const T* value, std::string_view name) {
  if (value == nullptr)
    throw InternalError({.what = "A node lacks an attribute.", .node = std::string(name)});
  return *value;
}

}  // namespace

int64_t Attrs::integer(std::string_view name) const {
  return present(get<int64_t>(*this, name, "an integer"), name);
}

double Attrs::real(std::string_view name) const {
  return present(get<double>(*this, name, "a float"), name);
}

std::string Attrs::string(std::string_view name) const {
  return present(get<std::string>(*this, name, "a string"), name);
}

const Graph& Attrs::body(std::string_view name) const {
  const Body* v = get<Body>(*this, name, "a graph");
  if (v == nullptr)
    throw InternalError({.what = "A node lacks its body.", .node = std::string(name)});
  return **v;
}

}  // namespace steep
