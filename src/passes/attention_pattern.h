// Matches scaled dot-product attention in a graph, forward and backward:
//
//   MatMul → (· c) → (Where keep) → (+ bias) → Softmax → (0 where NaN) → (Dropout) → MatMul
//
// where Softmax may be steep.SafeSoftmax, and backward is what autodiff made of it.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "ir/readers.h"
#include "ops/pattern.h"

namespace steep {

struct AttentionStep;

/// The nodes and values of one attention, for a rewrite.
struct Attention {
  struct Step {
    const AttentionStep* rule;
    Match match;
  };

  Node scores;                // q kᵀ
  std::vector<Step> between;  // from scores to softmax, in that order
  Node softmax;
  bool zero_shut = false;          // rows without keys are zeros without zero_nan
  std::vector<Step> after;         // from softmax to product, in that order
  Node is_nan, zero_nan, dropout;  // nodes in `after`, or null
  Node product;                    // p v
  Value bias, keep;                // may be null
  bool inverted = false;           // keep says which scores are masked out
  double factor = 1, masked = -std::numeric_limits<double>::infinity();

  Node softmax_grad;           // null if there is no gradient
  Node zero_nan_grad;          // may be null
  Node weights_swap;           // the transpose for dv; may be null
  Value dy, da{}, db{}, dv{};  // gradients of the products' operands; null if no node reads them

  Value left() const { return scores.input(0); }
  Value right() const { return scores.input(1); }
  Value values() const { return product.input(1); }
};

class AttentionMatcher {
 public:
  explicit AttentionMatcher(const Graph& g) : graph_(g), readers_(g) {}

  /// The attention around this softmax. Nothing if rank or axis do not fit, for double precision,
  /// and if nodes outside of the pattern read scores or probabilities (as an output of the model,
  /// or for the gradient of a mask).
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
std::vector<PatternRuleInfo> attention_patterns();

}  // namespace steep
