// Trains weights that a file stores as integers, and says why others are not trained.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

/// A weight that the file stores as integers, and DequantizeLinear reads.
struct QuantisedWeight {
  std::string name;
  DType dtype = DType::undefined;  ///< in the file
  Tensor scale{};                  ///< float32
  Tensor zero{};                   ///< of `dtype`; undefined: zeros
  int64_t axis = 0, block = 0;     ///< of DequantizeLinear
};

/// Prepares for training those integer weights that `options.trainable` names or matches and
/// `options.frozen` does not. A weight becomes a float32 constant of the same name with the
/// dequantised values. Readers get them through steep.FakeQuantize with the scale and zero point of
/// the file: they compute with the values that quantised() stores, and gradients pass straight
/// through. Weights of int32, which are biases, are not rounded. `initializers` and `constants`:
/// see choose_parameters(). Throws ModelError for a name of a weight that cannot be trained.
std::vector<QuantisedWeight> train_quantised(Graph& graph,
                                             std::span<const std::string> initializers,
                                             std::span<const std::string> constants,
                                             const TrainingOptions& options);

/// Removes the weights that are not in `names`.
void keep_only(std::vector<QuantisedWeight>& weights, const std::vector<std::string>& names);

/// The float32 values as the file stores them: what QuantizeLinear returns. Throws DataError if a
/// value is not finite.
Tensor quantised(const QuantisedWeight& weight, const Tensor& values);

/// How integers take part in the losses.
class IntegerUses {
 public:
  IntegerUses(const Graph& graph, std::span<const Value> losses);

  /// Why an integer constant is not trained, if it looks like a weight; else "".
  std::string why_not(Value constant) const;

  /// The nodes that compute with quantised numbers, and on which a loss depends: QLinearMatMul and
  /// the like.
  const std::vector<Node>& operators() const { return operators_; }

  /// Whether one of them depends on the value: its gradient would lack a part.
  bool feeds_operator(Value value) const { return feeding_[value.id()] != 0; }

  /// Throws ModelError if there are such nodes.
  void refuse_operators() const;

 private:
  std::vector<std::vector<Node>> users_;  // by value id; nodes on which a loss depends
  std::vector<char> feeding_;             // by value id
  std::vector<Node> operators_;
};

/// What to do about operators without a gradient such as QLinearMatMul.
extern const char* const kInsteadOfQuantisedOperators;

}  // namespace steep
