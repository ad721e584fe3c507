#include "model/read/copier.h"

namespace steep {
namespace {

// Field numbers of onnx.proto.
constexpr uint32_t kNodeOutput = 2;
constexpr uint32_t kNodeName = 3;
constexpr uint32_t kNodeOpType = 4;
constexpr uint32_t kAttributeName = 1;

std::string first_text(std::span<const std::byte> message, uint32_t number) {
  WireReader reader(message);
  for (WireField f; reader.next(f);) {
    if (f.number == number && f.type == WireType::bytes && !f.payload.empty())
      return std::string(text_of(f.payload));
  }
  return "";
}

/// The same name as display_name() gives.
std::string name_of_node(std::span<const std::byte> node) {
  for (const uint32_t number : {kNodeName, kNodeOutput, kNodeOpType}) {
    if (std::string text = first_text(node, number); !text.empty()) return text;
  }
  return "";
}

}  // namespace

std::string_view text_of(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

std::optional<Pieces> Copier::copy(Message kind, std::span<const std::byte> message,
                                   const MessagePlace& place) {
  if (kind == Message::tensor) return tensor(message, place);
  MessagePlace inner = place;
  inner.parent = kind;
  if (kind == Message::function || kind == Message::training) inner.weights = false;
  if (kind == Message::node) {
    if (auto other = node(message, place)) return other;
    inner.node = name_of_node(message);
  }
  if (kind == Message::attribute) {
    inner.path = place.path + place.node + "/" + first_text(message, kAttributeName) + "/";
  }
  Pieces result;
  bool changed = false;
  WireReader reader(message);
  for (WireField f; reader.next(f);) {
    const auto what = f.type == WireType::bytes ? child(kind, f.number) : std::nullopt;
    const auto other = what ? copy(*what, f.payload, inner) : std::nullopt;
    if (!other) {
      result.add(f.whole);
      continue;
    }
    changed = true;
    result.add(text_.header(f.number, other->size));
    result.add(*other);
  }
  if (!changed) return std::nullopt;
  return result;
}

}  // namespace steep
