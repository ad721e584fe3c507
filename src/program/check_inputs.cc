#include "program/check_inputs.h"

#include <fmt/format.h>

#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {

void require_count(const Graph& graph, const std::vector<size_t>& indices, size_t count) {
  if (count == indices.size()) return;
  std::string names;
  for (size_t i : indices) names += (names.empty() ? "" : ", ") + graph.inputs()[i].name();
  throw DataError({.what = "The number of inputs is wrong.",
                   .expected = fmt::format("{}: {}", counted(indices.size(), "input"), names),
                   .received = counted(count, "input")});
}

void require_type(const char* what, const std::string& node, const Type& target, const Tensor& t) {
  if (t.dtype() == target.dtype && t.dims() == target.dims()) return;
  throw ShapeError({.what = what,
                    .node = node,
                    .expected = to_string(target),
                    .received = to_string(Type{t.dtype(), to_shape(t.dims())})});
}

void require_kind(Value input, const Datum& d, bool any_items) {
  const Type& type = input.type();
  bool good = fits(d, type.kind);
  for (size_t i = 0; good && d.is_sequence() && i < d.items().size(); ++i) {
    const Datum& item = d.items()[i];
    good = any_items || (item.is_tensor() && item.tensor().dtype() == type.dtype);
  }
  if (good) return;
  throw DataError({.what = "An input is of the wrong kind.",
                   .node = input.name(),
                   .expected = to_string(type),
                   .received = d.text(),
                   .remedy = "Feed an array for a tensor, a list of arrays for a sequence."});
}

}  // namespace steep
