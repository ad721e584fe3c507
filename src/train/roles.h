// What a constant does in a model: is it a weight, or does it only scale the data or the loss?
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Files do not say which constants were trained; what a constant is used for tells most of them.
/// A *layer* is an operator with weights of its own: a product, convolution, recurrence or
/// normalisation that has an operand on which no input of the model bears. A constant is no weight
/// when all that it does is one of these:
///
/// - It shifts or scales an input, element by element, before a layer (a mean, a standard
///   deviation). With a loss inside of the model, also the input of the targets: one that reaches
///   the loss, but no layer.
/// - It weighs the loss: it meets, element by element, what has met the targets (the losses of
///   samples or heads), it is picked by targets and multiplies what layers made (the weights of
///   classes), or it is the operand of a loss for that.
/// - It is a scale or zero point of quantisation.
/// - It is a setting of an operator: a running statistic, a bound, an exponent, a ratio.
///
/// - It is a single number, and neither an operand of a layer nor the bias of one that has a single
///   channel: 3 and 6 of a hard swish, 1 of 1 - p, the epsilon of a norm.
///
/// What a branch or loop reads counts as what the operators inside do with it. Everything else is a
/// weight: constants with an unknown use are trained. Without any layer (an elementwise model,
/// embeddings alone) only quantisation and settings count.
class Roles {
 public:
  /// `with_targets`: the loss, and with it the inputs of the targets, are inside of the model.
  Roles(const Graph& graph, std::span<const Value> losses, bool with_targets);

  /// Why a constant is no weight; "" for a weight. Linear in the uses of what depends on it alone.
  std::string why_not(Value constant) const;

 private:
  struct Traits {
    bool live = false;      // some loss depends on it
    bool free = false;      // of all inputs: computed from constants and extents
    bool made = false;      // by a layer, a reduction or a table that is looked up
    bool to_layer = false;  // some layer depends on it
    bool target = false;    // of inputs that feed no layer, alone
    bool met = false;       // depends on what a layer made, and on targets
    bool integer = false;   // free or not: whole numbers of quantisation, cast to floats
  };

  const Traits& of(Value v) const { return traits_[v.id()]; }
  bool is_live(Node n) const;
  bool is_layer(Node n) const;
  void look_forward(std::span<const Node> order);
  void look_back(std::span<const Node> order, std::span<const Value> losses);
  void find_targets(std::span<const Node> order);
  std::string other_use(Value constant) const;  // than as a single number
  std::string use(Node n, int input) const;
  bool belongs_to_layer(Value constant) const;
  bool is_bias(Node n, Value v, Value y) const;
  bool is_bias_inside(Node n, Value v) const;
  bool weighs(Value picked) const;

  std::vector<Traits> traits_;  // by value id
  std::vector<std::vector<Node>> users_;
  bool layers_ = false;  // there are some
};

}  // namespace steep
