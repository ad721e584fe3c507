// Decides whether a constant of a model is a weight, or only scales the data or the loss.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Files do not say which constants were trained; in most cases their use shows it. A *layer* is an
/// operator with weights of its own: a product, convolution, recurrence or normalisation with an
/// operand that depends on no input of the model. A constant is no weight if all its uses are among
/// these:
///
/// - It shifts or scales an input, element by element, before a layer (a mean, a standard
///   deviation). If the loss is inside of the model, this includes the input of the targets: an
///   input that reaches the loss, but no layer.
/// - It weighs the loss: it is combined, element by element, with values that depend on targets
///   and on layers (the weights of samples or heads); or targets pick rows of it that multiply
///   results of layers (the weights of classes); or it is the weight operand of a loss.
/// - It is a scale or zero point of quantisation.
/// - It is a setting of an operator: a running statistic, a bound, an exponent, a ratio.
/// - It is a single number, and neither an operand of a layer nor the bias of a layer with a single
///   channel: 3 and 6 of a hard swish, 1 of 1 - p, the epsilon of a norm.
///
///
/// A constant that a branch or loop reads is judged by its uses inside of the bodies. Everything
/// else is a weight: constants with an unknown use are trained. In a model without any layer (an
/// elementwise model, embeddings alone) only quantisation and settings count.
class Roles {
 public:
  /// `with_targets`: the loss is inside of the model, and so are the inputs of the targets.
  Roles(const Graph& graph, std::span<const Value> losses, bool with_targets);

  /// Why a constant is no weight; "" for a weight. Takes time linear in the uses of the values that
  /// depend on it alone.
  std::string why_not(Value constant) const;

 private:
  struct Traits {
    bool live = false;      // some loss depends on it
    bool free = false;      // depends on no input: computed from constants and extents
    bool made = false;      // a result of a layer, a reduction or a lookup in a table
    bool to_layer = false;  // some layer depends on it
    bool target = false;    // depends only on inputs that reach no layer
    bool met = false;       // depends on results of layers, and on targets
    bool integer = false;   // quantised integers, perhaps cast to float; also if free
  };

  const Traits& of(Value v) const { return traits_[v.id()]; }
  bool is_live(Node n) const;
  bool is_layer(Node n) const;
  void look_forward(std::span<const Node> order);
  void look_back(std::span<const Node> order, std::span<const Value> losses);
  void find_targets(std::span<const Node> order);
  std::string other_use(Value constant) const;  // any reason except "a single number"
  std::string use(Node n, int input) const;
  bool belongs_to_layer(Value constant) const;
  bool is_bias(Node n, Value v, Value y) const;
  bool is_bias_inside(Node n, Value v) const;
  bool weighs(Value value) const;

  std::vector<Traits> traits_;  // by value id
  std::vector<std::vector<Node>> users_;
  bool layers_ = false;  // the model has at least one layer
};

}  // namespace steep
