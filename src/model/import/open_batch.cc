#include "model/import/open_batch.h"

#include <fmt/format.h>

#include <set>

#include "model/import/row_follower.h"
#include "steep/error.h"

namespace steep {

int64_t fixed_batch(const onnx::GraphProto& graph) {
  std::set<std::string> initializers;
  for (const auto& tensor : graph.initializer()) initializers.insert(tensor.name());
  int64_t rows = 0;
  for (const auto& input : graph.input()) {
    if (initializers.count(input.name()) != 0) continue;
    const auto& tensor = input.type().tensor_type();
    if (!input.type().has_tensor_type() || tensor.shape().dim_size() == 0) return 0;
    const int64_t first =
        tensor.shape().dim(0).has_dim_value() ? tensor.shape().dim(0).dim_value() : 0;
    if (first < 1 || (rows != 0 && rows != first)) return 0;
    rows = first;
  }
  return rows;
}

std::string open_rows(const onnx::GraphProto& graph) {
  std::set<std::string> initializers;
  for (const auto& tensor : graph.initializer()) initializers.insert(tensor.name());
  std::set<std::string> names;
  for (const auto& input : graph.input()) {
    if (initializers.count(input.name()) != 0) continue;
    const auto& shape = input.type().tensor_type().shape();
    names.insert(shape.dim_size() == 0 ? "" : shape.dim(0).dim_param());
  }
  return names.size() == 1 ? *names.begin() : "";
}

RowsInside rows_inside(const Graph& graph, const std::string& symbol) {
  RowsInside found;
  for (Node n : graph.nodes()) {
    if (n.op() != "Reshape" || !n.output(0).type().concrete() || !n.input(0).type().shape) continue;
    int64_t in = 1, out = 1, open = 0;
    for (const Dim& d : n.input(0).shape()) {
      if (d.known()) in *= d.value();
      if (!d.known()) open += d.symbol() == symbol ? 1 : 2;
    }
    for (const Dim& d : n.output(0).shape()) out *= d.value();
    if (open != 1 || in == 0 || out % in != 0) continue;
    if (found.rows != 0 && found.rows != out / in) return {};
    if (found.rows == 0) found = {out / in, n.name()};
  }
  return found;
}

std::string batch_symbol(const onnx::GraphProto& graph) {
  std::set<std::string> names;
  for (const auto& input : graph.input()) {
    for (const auto& dim : input.type().tensor_type().shape().dim()) names.insert(dim.dim_param());
  }
  std::string name = "batch";
  while (names.count(name) != 0) name += "_";
  return name;
}

std::string open_batch(Graph& graph, const std::string& symbol, int64_t rows) {
  try {
    batch::RowFollower(graph, symbol, rows).follow();
    return "";
  } catch (const batch::Lost& error) {
    return error.why;
  } catch (const ModelError& error) {  // from type inference with a symbolic number of rows
    return error.parts().what;
  } catch (const ShapeError& error) {
    return fmt::format("{} '{}' holds it", error.parts().op, error.parts().node);
  }
}

}  // namespace steep
