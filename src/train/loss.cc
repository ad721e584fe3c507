#include "train/loss.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/build.h"
#include "ops/defs/losses.h"
#include "ops/op_def.h"
#include "ops/wide.h"
#include "steep/error.h"
#include "train/names.h"

namespace steep {
namespace {

std::vector<std::string> output_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Output& o : graph.outputs()) names.push_back(o.name);
  return names;
}

bool may_be_scalar(const Type& type) {
  if (!type.shape) return true;
  for (const Dim& d : *type.shape) {
    if (d.known() && d.value() != 1) return false;
  }
  return true;
}

Value label_input(Graph& graph, const std::string& name, Type type, bool* added) {
  for (Value v : graph.inputs()) {
    if (v.name() != name) continue;
    if (v.dtype() != type.dtype) {
      throw ShapeError(ErrorParts{.what = "The model's own label input does not suit the loss.",
                                  .node = name,
                                  .expected = to_string(type),
                                  .received = to_string(v.type()),
                                  .remedy = "Name another label input."});
    }
    return v;
  }
  if (graph.find(name)) {
    throw ModelError(ErrorParts{.what = "The label input needs a name of its own.",
                                .node = name,
                                .received = "a name that the model uses for another value",
                                .remedy = "Name another label input."});
  }
  *added = true;
  return graph.add_input(name, std::move(type));
}

/// What a value is before it is moved, cast and bounded.
Value before_moves(Value v) {
  for (;;) {
    const Node n = v.producer();
    const OpDef* def = n ? find_op(n.op()) : nullptr;
    if (def == nullptr) return v;
    const std::string& op = n.op();
    const bool bounds = op == "Clip" || op == "Identity";
    if (!def->view && op != "Transpose" && op != "Cast" && !bounds) {
      if ((op != "Max" && op != "Min") || n.input_count() != 2) return v;
      const bool first = n.input(1).role() == Role::constant;
      if (!first && n.input(0).role() != Role::constant) return v;
      v = n.input(first ? 0 : 1);
      continue;
    }
    v = n.input(0);
  }
}

/// p of 1 - p.
Value complement_of(Value v) {
  const Node n = before_moves(v).producer();
  if (!n || n.op() != "Sub" || n.input(0).role() != Role::constant) return {};
  return before_moves(n.input(1));
}

/// Numbers from 0 to 1 that sum to 1, as files spell them other than by the operator of the loss.
bool makes_probabilities(Node n) {
  if (n.op() == "Softmax" || n.op() == "Sigmoid") return true;
  if (n.op() == "Concat" && n.input_count() == 2) {
    return complement_of(n.input(0)) == before_moves(n.input(1)) ||
           complement_of(n.input(1)) == before_moves(n.input(0));
  }
  if (n.op() != "Div") return false;
  const Node sum = before_moves(n.input(1)).producer();
  return sum && (sum.op() == "ReduceSum" || sum.op() == "ReduceL1") &&
         before_moves(sum.input(0)) == before_moves(n.input(0));
}

/// What the loss itself makes of scores.
std::string_view makes_of_scores(const std::string& loss) {
  if (loss == "softmax_cross_entropy") return "Softmax";
  if (loss == "binary_cross_entropy_with_logits") return "Sigmoid";
  return "";
}

/// The scores of which `y` is what the loss makes of scores itself; `y` where it is not.
Value scores_of(Value y, const std::string& loss) {
  Value v = y;
  while (v.producer() && (v.producer().op() == "Identity" || v.producer().op() == "Cast"))
    v = v.producer().input(0);
  const Node n = v.producer();
  if (!n || n.op() != makes_of_scores(loss) || !is_float(n.input(0).dtype())) return y;
  if (n.op() != "Softmax") return n.input(0);
  const int64_t axis = integer_of(n, "axis");
  return axis == -1 || axis == v.rank() - 1 ? n.input(0) : y;
}

}  // namespace

void offer_output(Graph& graph, const TrainingOptions& options) {
  const auto& outputs = graph.outputs();
  const bool there = std::any_of(outputs.begin(), outputs.end(),
                                 [&](const Output& o) { return o.name == options.output; });
  if (options.output.empty() || there) return;
  const Value inner = graph.find(options.output);
  if (inner && inner.producer() && is_float(inner.dtype())) graph.add_output(options.output, inner);
}

const Output& find_output(const Graph& graph, const TrainingOptions& options) {
  const auto& outputs = graph.outputs();
  if (outputs.empty()) throw ModelError("The model has no output.");
  const std::string wanted = options.output.empty() ? "loss" : options.output;
  if (options.output.empty() && outputs.size() == 1) return outputs[0];
  for (const Output& o : outputs) {
    if (o.name == wanted) return o;
  }
  if (options.output.empty()) {
    throw ModelError(ErrorParts{.what = "The model has several outputs; which one to train on?",
                                .expected = "the name of one of them",
                                .received = list_names(output_names(graph)),
                                .remedy = "Name it: TrainingOptions::output, or --output."});
  }
  throw ModelError(ErrorParts{.what = "The model has no such output.",
                              .node = options.output,
                              .expected = nearest_names(options.output, output_names(graph)) +
                                          ", or another float value of the model",
                              .received = options.output});
}

/// Losses, their sums and counts are of float32 at least.
Value wide(Value v) { return is_half(v.dtype()) ? cast(v, DType::f32) : v; }

Value mse_loss(Value y, Value target) {
  Value d = wide(y) - wide(target);
  return mean(d * d, {}, false);
}

Value softmax_cross_entropy_loss(Value logits, Value labels, std::optional<int64_t> ignore_index) {
  if (logits.rank() > 2) {
    const Dim& classes = logits.shape().back();
    logits = classes.known() ? reshape(logits, Ints{-1, classes.value()})
                             : apply("Flatten", {logits}, {{"axis", logits.rank() - 1}});
    labels = reshape(labels, Ints{-1});
  }
  Attrs attrs{{"reduction", std::string("mean")}};
  if (ignore_index) attrs.set("ignore_index", *ignore_index);
  const Value operands[] = {wide(logits), labels};
  return apply_n("steep.SoftmaxCrossEntropy", operands, 3, std::move(attrs))[0];
}

Value binary_cross_entropy_with_logits_loss(Value logits, Value target) {
  // max(x, 0) - x·t + log(1 + exp(-|x|)) is as stable, but its parts have no derivative at 0, where
  // the logits of a model that starts with zero weights are.
  logits = wide(logits);
  target = wide(target);
  Value positive = apply("Softplus", {-logits}), negative = apply("Softplus", {logits});
  return mean(target * positive + (1.0 - target) * negative, {}, false);
}

Value loss_weight(Value loss) {
  Node n = loss.producer();
  const OpDef* def = n ? find_op(n.op()) : nullptr;
  while (def != nullptr && (def->view || n.op() == "Cast")) {
    loss = n.input(0);
    n = loss.producer();
    def = n ? find_op(n.op()) : nullptr;
  }
  const bool cross_entropy =
      n && (n.op() == "SoftmaxCrossEntropyLoss" || n.op() == "NegativeLogLikelihoodLoss" ||
            n.op() == "steep.SoftmaxCrossEntropy");
  if (!cross_entropy || loss != n.output(0) || text_of(n, "reduction") != "mean") return {};
  const DType dtype = n.input(2) ? n.input(2).dtype() : DType::f32;
  const LabelRows rows = label_rows(n, n.input(1), n.input(2), dtype);
  return rows.weights ? sum(rows.weights, {}, false) : Value();
}

std::string doubts(const Graph& graph, const TrainingOptions& options) {
  const std::string_view own = makes_of_scores(options.loss);
  if (own.empty()) return "";
  const Value y = find_output(graph, options).value;
  const Node n = before_moves(y).producer();
  if (!n || scores_of(y, options.loss) != y) return "";
  const std::string at =
      fmt::format("{} applies {} itself, but output '{}' ", options.loss, own, y.name());
  if (n.op() == own) {
    return at + fmt::format(
                    "comes from one ('{}'): it is applied twice, which slows training down and "
                    "bounds the loss. Train on '{}': export the model without the {}, or with "
                    "what it reads as an output, and name that.",
                    n.name(), n.input(0).name(), own);
  }
  if (!makes_probabilities(n)) return "";
  return at + fmt::format(
                  "holds probabilities already ('{}', {}), which slows training down and bounds "
                  "the loss. Export the scores from which they are computed as an output, and "
                  "train on these.",
                  n.name(), n.op());
}

AttachedLoss attach_loss(Graph& graph, const TrainingOptions& options) {
  Value y = scores_of(find_output(graph, options).value, options.loss);
  Graph::Scope scope(graph, Phase::forward, "loss");
  AttachedLoss attached;
  if (!is_float(y.dtype()) || y.type().kind != Kind::tensor) {
    throw ShapeError(ErrorParts{.what = "Only a float output can be trained on.",
                                .node = y.name(),
                                .expected = "a tensor of a float dtype",
                                .received = to_string(y.type())});
  }
  const Type like{y.dtype(), y.type().shape};
  if (options.loss.empty()) {
    if (!may_be_scalar(y.type())) {
      throw ShapeError(ErrorParts{
          .what = "The output is not a loss.",
          .node = y.name(),
          .expected = "one element",
          .received = to_string(y.type()),
          .remedy =
              "Choose a loss: mse, softmax_cross_entropy, binary_cross_entropy_with_logits."});
    }
    attached.loss = y;
  } else if (options.loss == "mse") {
    attached.label = label_input(graph, options.label, like, &attached.label_added);
    attached.loss = mse_loss(y, attached.label);
  } else if (options.loss == "binary_cross_entropy_with_logits") {
    attached.label = label_input(graph, options.label, like, &attached.label_added);
    attached.loss = binary_cross_entropy_with_logits_loss(y, attached.label);
  } else if (options.loss == "softmax_cross_entropy") {
    if (y.rank() < 2) {
      throw ShapeError(ErrorParts{.what = "softmax_cross_entropy needs rows of class scores.",
                                  .node = y.name(),
                                  .expected = "[rows, classes], or more axes before the classes",
                                  .received = to_string(y.type())});
    }
    Shape rows(y.shape().begin(), y.shape().end() - 1);
    attached.label =
        label_input(graph, options.label, {DType::i64, std::move(rows)}, &attached.label_added);
    attached.loss = softmax_cross_entropy_loss(y, attached.label, options.ignore_index);
  } else {
    const std::vector<std::string> losses{"mse", "softmax_cross_entropy",
                                          "binary_cross_entropy_with_logits"};
    throw ModelError(ErrorParts{.what = "The loss is unknown.",
                                .expected = list_names(losses) + ", or none",
                                .received = options.loss});
  }
  return attached;
}

}  // namespace steep
