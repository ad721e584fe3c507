// Visits every tensor of a serialised model, and copies the model with replaced tensors.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "model/read/messages.h"
#include "model/read/pieces.h"

namespace steep {

/// The position of a message in a model.
struct MessagePlace {
  bool weights = true;  ///< in the model's graph or its bodies; false: function, training_info
  std::string path{};   ///< of bodies: "node/then_branch/"; "" for the model's own graph
  Message parent = Message::model;  ///< the message that contains it
  std::string node{};               ///< display name of the enclosing node
};

/// Text of a payload.
std::string_view text_of(std::span<const std::byte> payload);

class Copier {
 public:
  virtual ~Copier() = default;

  /// Copies a message with the replacements that tensor() and node() return; nothing when there are
  /// none. Recursive: scan_model() has bounded the depth of bodies.
  std::optional<Pieces> copy(Message kind, std::span<const std::byte> message,
                             const MessagePlace& place = {});

 protected:
  /// The replacement of a TensorProto; nothing: no change.
  virtual std::optional<Pieces> tensor(std::span<const std::byte> message,
                                       const MessagePlace& place) = 0;
  /// The replacement of a NodeProto; nothing: its content is copied.
  virtual std::optional<Pieces> node(std::span<const std::byte> /*message*/,
                                     const MessagePlace& /*place*/) {
    return std::nullopt;
  }

  PieceText text_;
};

}  // namespace steep
