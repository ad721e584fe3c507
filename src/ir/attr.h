// Attributes of nodes: the kinds that ONNX has, but floats are stored as double, so that optimizer
// constants keep all their digits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "steep/tensor.h"

namespace steep {

class Graph;

using Ints = std::vector<int64_t>;
using Floats = std::vector<double>;
using Strings = std::vector<std::string>;
/// Bodies are immutable once attached, so that copies of a node can share them.
using Body = std::shared_ptr<const Graph>;
using Attr = std::variant<int64_t, double, std::string, Ints, Floats, Strings, Tensor, Body>;

/// A small map, kept in order of insertion (printing must not depend on hashing).
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, Attr>> items) : items_(items) {}

  const Attr* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  void set(std::string_view name, Attr value);
  void erase(std::string_view name);

  /// The attribute, or `otherwise` when the node has none. Throws ModelError when the attribute is
  /// of another kind.
  int64_t integer(std::string_view name, int64_t otherwise) const;
  double real(std::string_view name, double otherwise) const;
  std::string string(std::string_view name, std::string_view otherwise) const;
  Ints ints(std::string_view name, Ints otherwise = {}) const;
  /// The attribute. Throws ModelError when it is of another kind, InternalError when there is none.
  int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;
  std::string string(std::string_view name) const;
  /// The body. Throws InternalError when there is none.
  const Graph& body(std::string_view name) const;

  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }
  bool empty() const { return items_.empty(); }

 private:
  std::vector<std::pair<std::string, Attr>> items_;
};

}  // namespace steep
