// The fields of ONNX's messages that hold messages relevant to Steep. Field numbers are those of
// onnx.proto, which never reuses a number.
#pragma once

#include <cstdint>
#include <optional>

namespace steep {

/// Messages that can contain nodes or tensors, and nodes and tensors themselves. `sparse` contains
/// two tensors.
enum class Message : uint8_t { model, training, function, graph, node, attribute, sparse, tensor };

/// The message type of field `number` in `parent`; none for other fields.
inline std::optional<Message> child(Message parent, uint32_t number) {
  struct Field {
    Message parent;
    uint32_t number;
    Message child;
  };
  constexpr Field kFields[] = {
      {Message::model, 7, Message::graph},         {Message::model, 20, Message::training},
      {Message::model, 25, Message::function},     {Message::training, 1, Message::graph},
      {Message::training, 2, Message::graph},      {Message::function, 7, Message::node},
      {Message::function, 11, Message::attribute}, {Message::graph, 1, Message::node},
      {Message::graph, 5, Message::tensor},        {Message::graph, 15, Message::sparse},
      {Message::node, 5, Message::attribute},      {Message::attribute, 5, Message::tensor},
      {Message::attribute, 10, Message::tensor},   {Message::attribute, 6, Message::graph},
      {Message::attribute, 11, Message::graph},    {Message::attribute, 22, Message::sparse},
      {Message::attribute, 23, Message::sparse},   {Message::sparse, 1, Message::tensor},
      {Message::sparse, 2, Message::tensor}};
  for (const Field& field : kFields) {
    if (field.parent == parent && field.number == number) return field.child;
  }
  return std::nullopt;
}

}  // namespace steep
