// What is known of a value before a run: its dtype and its (possibly symbolic) shape.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "steep/tensor.h"

namespace steep {

/// One extent: a number, a named symbol ("batch"), or unknown. Two dims with the same symbol are
/// equal by definition. An unknown dim equals nothing, not even itself.
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

  /// True only if the two extents are equal for every binding of the symbols.
  friend bool provably_equal(const Dim& a, const Dim& b) {
    if (a.known() || b.known()) return a.value_ == b.value_;
    return !a.symbol_.empty() && a.symbol_ == b.symbol_;
  }

 private:
  int64_t value_ = -1;
  std::string symbol_;
};

using Shape = std::vector<Dim>;

/// The kind of a value. For sequences and optionals, `Type::dtype` and `Type::shape` describe the
/// tensors that they hold.
enum class Kind : uint8_t { tensor, sequence, optional, optional_sequence };

/// `shape` is absent when not even the rank is known.
struct Type {
  DType dtype = DType::undefined;
  std::optional<Shape> shape{};
  Kind kind = Kind::tensor;

  /// Whether this is a tensor with only known extents.
  bool concrete() const;
  /// The extents. REQUIRES: concrete().
  Dims dims() const;
  /// Size of a tensor in bytes. REQUIRES: concrete(). Throws ShapeError when the size exceeds the
  /// address space, so that sums of sizes do not overflow.
  size_t nbytes() const;
};

bool provably_equal(const Shape& a, const Shape& b);
Shape to_shape(const Dims& dims);
/// "[batch, 128, ?]", or "[*]" when the rank is unknown.
std::string to_string(const std::optional<Shape>& shape);
/// "float32[batch, 128, ?]", "seq(float32[*])"
std::string to_string(const Type& type);

}  // namespace steep
