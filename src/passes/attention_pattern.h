// Scaled dot-product attention in a graph, forward and backward:
//
//   MatMul → (· c) → (Where keep) → (+ bias) → Softmax → (0 where NaN) → (Dropout) → MatMul
//
// where Softmax may be steep.SafeSoftmax, and what differentiation made of it.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "ir/readers.h"
#include "ops/pattern.h"

namespace steep {

struct AttentionStep;

/// Everything that a rewrite must know of one attention.
struct Attention {
  struct Step {
    const AttentionStep* row;
    Match match;
  };

  Node scores;                // q kᵀ
  std::vector<Step> between;  // from scores to softmax, in that order
  Node softmax;
  bool zero_shut = false;          // a row without keys is zeros already
  std::vector<Step> after;         // from softmax to product, in that order
  Node is_nan, zero_nan, dropout;  // of these, or null
  Node product;                    // p v
  Value bias, keep;                // or null
  bool inverted = false;           // keep says what to mask
  double factor = 1, masked = -std::numeric_limits<double>::infinity();

  Node softmax_grad;           // null when nobody asks for gradients
  Node zero_nan_grad;          // or null
  Node weights_swap;           // or null: for dv
  Value dy, da{}, db{}, dv{};  // of the products' operands; null where nobody asks

  Value left() const { return scores.input(0); }
  Value right() const { return scores.input(1); }
  Value values() const { return product.input(1); }
};

class AttentionMatcher {
 public:
  explicit AttentionMatcher(const Graph& g) : graph_(g), readers_(g) {}

  /// The attention of this softmax. Nothing if it is of another rank or axis than attention's, in
  /// double precision, or if anybody else reads scores or probabilities (an output of the model,
  /// the gradient of a mask).
  std::optional<Attention> match(Node softmax) const;

  const Readers& readers() const { return readers_; }

 private:
  friend struct AttentionStep;

  enum class Stage : uint8_t { bias, keep, factor };

  bool find_product(Attention& a) const;
  bool climb(Value x, Attention& a, Stage stage) const;
  bool find_gradients(Attention& a) const;
  bool is_private(const Attention& a) const;
  bool find_gradients_of_scores(Attention& a) const;
  bool read_by(Value v, std::initializer_list<Node> readers) const;

  const Graph& graph_;
  Readers readers_;
};

/// The patterns of the parts of an attention.
std::vector<RowInfo> attention_rows();

}  // namespace steep
