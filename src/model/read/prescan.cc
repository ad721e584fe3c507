#include "model/read/prescan.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "model/read/messages.h"
#include "model/read/wire.h"
#include "steep/error.h"

namespace steep {
namespace {

struct Level {
  WireReader reader;
  Message kind;
  int depth;  // nesting depth of graphs
};

[[noreturn]] void over_limit(const char* what, size_t limit, const char* option) {
  throw ModelError({.what = what,
                    .expected = fmt::format("at most {}", limit),
                    .received = "more",
                    .remedy = fmt::format("If this is intended, raise Limits::{}.", option)});
}

}  // namespace

void scan_model(std::span<const std::byte> bytes, const Limits& limits) {
  if (bytes.empty()) {
    throw ModelError({.what = "The model is empty.",
                      .expected = "an ONNX model (a protobuf message)",
                      .received = "0 bytes",
                      .remedy = "Check that the export succeeded and that the path is right."});
  }
  if (bytes.size() > limits.max_bytes)
    over_limit("The model is too large.", limits.max_bytes, "max_bytes");

  // A part of two bytes becomes an object of a hundred bytes or more, so parts are counted before
  // they are built.
  const size_t max_parts = 16 * limits.max_nodes + 100'000;
  size_t parts = 0;
  size_t nodes = 0;
  bool has_graph = false;
  std::vector<Level> levels{{WireReader(bytes), Message::model, 0}};
  WireField field;
  while (!levels.empty()) {
    Level& here = levels.back();
    if (!here.reader.next(field)) {
      levels.pop_back();
      continue;
    }
    if (field.type != WireType::bytes) continue;
    if (++parts > max_parts) over_limit("The model has too many parts.", max_parts, "max_nodes");
    const std::optional<Message> kind = child(here.kind, field.number);
    if (!kind || *kind == Message::tensor || *kind == Message::sparse) continue;
    if (*kind == Message::node && ++nodes > limits.max_nodes) {
      over_limit("The model has too many nodes.", limits.max_nodes, "max_nodes");
    }
    if (*kind == Message::graph && here.kind == Message::model) has_graph = true;
    const int depth =
        here.depth + (*kind == Message::graph && here.kind == Message::attribute ? 1 : 0);
    if (depth > limits.max_depth) {
      throw ModelError(
          {.what = "The model's graphs are nested too deep.",
           .expected = fmt::format("at most {} graphs within one another", limits.max_depth),
           .received = "more",
           .remedy = "Export the model without nested control flow, or raise "
                     "Limits::max_depth."});
    }
    levels.push_back({WireReader(field.payload), *kind, depth});
  }
  if (!has_graph) {
    throw ModelError({.what = "This is not an ONNX model: it holds no graph.",
                      .remedy = "Give an .onnx file, not its external data or another format."});
  }
}

}  // namespace steep
