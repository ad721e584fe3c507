// Which fields of ONNX's messages hold messages that matter to us. Field numbers: onnx.proto (never
// reused, by its own rules).
#pragma once

#include <cstdint>
#include <optional>

namespace steep {

/// Messages that can hold nodes or tensors, and these. `sparse` holds two tensors.
enum class Message : uint8_t { model, training, function, graph, node, attribute, sparse, tensor };

/// The message in field `number` of a `parent`; none for everything else.
inline std::optional<Message> child(Message parent, uint32_t number) {
  switch (parent) {
    case Message::model:
      if (number == 7) return Message::graph;
      if (number == 20) return Message::training;
      if (number == 25) return Message::function;
      break;
    case Message::training:
      if (number == 1 || number == 2) return Message::graph;
      break;
    case Message::function:
      if (number == 7) return Message::node;
      if (number == 11) return Message::attribute;
      break;
    case Message::graph:
      if (number == 1) return Message::node;
      if (number == 5) return Message::tensor;
      if (number == 15) return Message::sparse;
      break;
    case Message::node:
      if (number == 5) return Message::attribute;
      break;
    case Message::attribute:
      if (number == 5 || number == 10) return Message::tensor;
      if (number == 6 || number == 11) return Message::graph;
      if (number == 22 || number == 23) return Message::sparse;
      break;
    case Message::sparse:
      if (number == 1 || number == 2) return Message::tensor;
      break;
    case Message::tensor: break;
  }
  return std::nullopt;
}

}  // namespace steep
