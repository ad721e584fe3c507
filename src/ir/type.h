// What is known of a value before it exists: its dtype and its (possibly symbolic) shape.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "steep/tensor.h"

namespace steep {

/// One extent: a number, a named symbol ("batch"), or unknown. Two dims with one symbol are equal
/// by definition; an unknown dim equals nothing, not even itself.
class Dim {
 public:
  Dim() = default;  ///< unknown
  Dim(int64_t value) : value_(value) {}
  static Dim symbol(std::string name) {
    Dim d;
    d.symbol_ = std::move(name);
    return d;
  }

  bool known() const { return value_ >= 0; }
  int64_t value() const { return value_; }  ///< -1 unless known()
  friend bool is_one(const Dim& d) { return d.value_ == 1; }
  const std::string& symbol() const { return symbol_; }

  /// True only if the two extents are equal whatever the symbols will be bound to.
  friend bool provably_equal(const Dim& a, const Dim& b) {
    if (a.known() || b.known()) return a.value_ == b.value_;
    return !a.symbol_.empty() && a.symbol_ == b.symbol_;
  }

 private:
  int64_t value_ = -1;
  std::string symbol_;
};

using Shape = std::vector<Dim>;

/// What a value is made of. Of sequences and optionals, `Type::dtype` and `Type::shape` are those
/// of the tensors in them.
enum class Kind : uint8_t { tensor, sequence, optional, optional_sequence };

/// `shape` is absent when not even the rank is known.
struct Type {
  DType dtype = DType::undefined;
  std::optional<Shape> shape{};
  Kind kind = Kind::tensor;

  /// True of a tensor of which every extent is a number.
  bool concrete() const;
  /// The extents. REQUIRES: concrete().
  Dims dims() const;
  /// Of a tensor. REQUIRES: concrete(). Throws ShapeError when no memory could hold that: sums of
  /// these numbers do not overflow.
  size_t nbytes() const;
};

bool provably_equal(const Shape& a, const Shape& b);
Shape to_shape(const Dims& dims);
/// "[batch, 128, ?]", or "[*]" when the rank is unknown.
std::string to_string(const std::optional<Shape>& shape);
/// "float32[batch, 128, ?]", "seq(float32[*])"
std::string to_string(const Type& type);

}  // namespace steep
