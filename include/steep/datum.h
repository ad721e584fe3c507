// The value of an input or output of a model: a tensor, a sequence, or nothing (an empty optional).
// Copies share the bytes.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "steep/tensor.h"

namespace steep {

class Datum {
 public:
  using Items = std::vector<Datum>;

  Datum() = default;  ///< nothing
  /// An undefined tensor makes an empty Datum.
  Datum(Tensor tensor) {
    if (tensor.defined()) value_ = std::move(tensor);
  }
  Datum(Items items) : value_(std::make_shared<const Items>(std::move(items))) {}

  bool empty() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_tensor() const { return std::holds_alternative<Tensor>(value_); }
  bool is_sequence() const { return std::holds_alternative<std::shared_ptr<const Items>>(value_); }

  /// Throws DataError if the value is of another kind.
  const Tensor& tensor() const;
  const Items& items() const;

  /// Bytes of all tensors in it, nested ones included.
  size_t nbytes() const;
  /// "float32[2, 3]", "sequence of 3", "nothing"
  std::string text() const;

 private:
  std::variant<std::monostate, Tensor, std::shared_ptr<const Items>> value_;
};

}  // namespace steep
