// Walks a serialised model to every tensor in it, wherever it stands, and copies it with other
// tensors in their places.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "model/read/messages.h"
#include "model/read/pieces.h"

namespace steep {

/// Where in a model a message stands.
struct MessagePlace {
  bool weights = true;  ///< in the model's own graph or a body of it: no function, no training_info
  std::string path{};   ///< of bodies: "node/then_branch/"; "" for the model's own graph
  Message parent = Message::model;  ///< what the message is a field of
  std::string node{};               ///< in a node: what messages call it
};

/// Text of a payload.
std::string_view text_of(std::span<const std::byte> payload);

class Copier {
 public:
  virtual ~Copier() = default;

  /// The message with what tensor() and node() put in the places of others; nothing where they
  /// change nothing. The depth of bodies was bounded by scan_model().
  std::optional<Pieces> copy(Message kind, std::span<const std::byte> message,
                             const MessagePlace& place = {});

 protected:
  /// What is in the place of a TensorProto; nothing: it stays.
  virtual std::optional<Pieces> tensor(std::span<const std::byte> message,
                                       const MessagePlace& place) = 0;
  /// What is in the place of a NodeProto; nothing: it is copied with what it holds.
  virtual std::optional<Pieces> node(std::span<const std::byte> /*message*/,
                                     const MessagePlace& /*place*/) {
    return std::nullopt;
  }

  PieceText text_;
};

}  // namespace steep
