#include "train/loss.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

#include "ir/splice.h"
#include "ops/build.h"
#include "ops/defs/losses.h"
#include "ops/op_def.h"
#include "runtime/counted.h"
#include "runtime/float32.h"
#include "steep/error.h"
#include "train/losses.h"
#include "train/name_suggestions.h"
#include "train/own_loss.h"
#include "train/probabilities.h"

namespace steep {
namespace {

std::vector<std::string> output_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Output& o : graph.outputs()) names.push_back(o.name);
  return names;
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
  const Value other = graph.find(name);
  if (other && other.producer() && !is_float(other.dtype())) {
    std::string computed = name + ".computed";  // classifiers compute labels, often of this name
    while (graph.find(computed)) computed += "_";
    graph.rename(other, computed);
  } else if (other) {
    throw ModelError(ErrorParts{.what = "The label input needs a name of its own.",
                                .node = name,
                                .received = "a name that the model uses for another value",
                                .remedy = "Name another label input."});
  }
  *added = true;
  const Value label = graph.add_input(name, std::move(type));
  graph.rename(label, name);  // it got another name if one of the model's was renamed above
  return label;
}

/// Losses over classes that may ignore labels or weigh classes.
constexpr PatternRule<> kCrossEntropies[] = {
    {.name = "loss/cross_entropy",
     .reason = "A mean over batches counts each batch by its labels that count.",
     .pattern = "SoftmaxCrossEntropyLoss|NegativeLogLikelihoodLoss|steep.SoftmaxCrossEntropy(_, _, "
                "...)"}};

/// The elements or rows that each label is compared with.
enum class Of { elements, broadcast_elements, classes };

struct Loss {
  std::string_view name;
  Of of;
  std::string_view makes = "";  ///< operator that the loss itself applies to scores
  ClassLoss (*build)(Value y, Value labels, const TrainingOptions&);
};

template <Value (*kFormula)(Value, Value)>
ClassLoss of_elements(Value y, Value labels, const TrainingOptions& /*options*/) {
  const Value loss = kFormula(y, labels);
  return {loss, loss};
}

ClassLoss huber(Value y, Value labels, const TrainingOptions& options) {
  const Value loss = huber_loss(y, labels, options.huber_delta);
  return {loss, loss};
}

/// Throws ShapeError unless there is one weight for each class.
Value class_weights(Value scores, const TrainingOptions& options) {
  if (options.class_weights.empty()) return {};
  const auto count = static_cast<int64_t>(options.class_weights.size());
  const Dim& classes = scores.shape().back();
  if (!classes.known() || classes.value() != count) {
    throw ShapeError(ErrorParts{.what = "There is not one weight for each class.",
                                .node = scores.name(),
                                .expected = classes.known()
                                                ? counted(classes.value(), "class weight")
                                                : "a model whose number of classes is fixed",
                                .received = counted(count, "class weight"),
                                .remedy = "Correct class_weights (--class-weights)."});
  }
  Tensor weights = Tensor::empty(DType::f32, {count});
  std::transform(options.class_weights.begin(), options.class_weights.end(), weights.data<float>(),
                 [](double w) { return static_cast<float>(w); });
  return scores.graph().add_constant(std::move(weights));
}

template <ClassLoss (*kFormula)(Value, Value, const ClassOptions&)>
ClassLoss of_classes(Value y, Value labels, const TrainingOptions& options) {
  return kFormula(y, labels,
                  {.ignore_index = options.ignore_index,
                   .weights = class_weights(y, options),
                   .smoothing = options.label_smoothing});
}

constexpr Loss kLosses[] = {
    {"mse", Of::broadcast_elements, "", of_elements<mse_loss>},
    {"l1", Of::broadcast_elements, "", of_elements<l1_loss>},
    {"huber", Of::broadcast_elements, "", huber},
    {"softmax_cross_entropy", Of::classes, "Softmax", of_classes<softmax_cross_entropy_loss>},
    {"nll", Of::classes, "", of_classes<nll_loss>},
    {"binary_cross_entropy", Of::elements, "", of_elements<binary_cross_entropy_loss>},
    {"binary_cross_entropy_with_logits", Of::elements, "Sigmoid",
     of_elements<binary_cross_entropy_with_logits_loss>},
};

const Loss* find_loss(std::string_view name) {
  const auto* row = std::find_if(std::begin(kLosses), std::end(kLosses),
                                 [&](const Loss& loss) { return loss.name == name; });
  return row == std::end(kLosses) ? nullptr : row;
}

const Loss& loss_of(const TrainingOptions& options) {
  if (const Loss* row = find_loss(options.loss)) return *row;
  const std::string near = closest_name(options.loss, loss_names());
  throw ModelError(ErrorParts{
      .what = "The loss is unknown.",
      .expected = fmt::format("{}, a file NAME.onnx, or none", fmt::join(loss_names(), ", ")),
      .received = options.loss,
      .remedy = near.empty() ? "" : fmt::format("Did you mean {}?", near)});
}

/// The operator that the loss itself applies to scores; "" if there is none.
std::string_view makes_of_scores(const std::string& loss) {
  const Loss* row = find_loss(loss);
  return row != nullptr ? row->makes : "";
}

[[noreturn]] void refuse_number(const char* name, const std::string& expected, double received) {
  throw ModelError(ErrorParts{.what = fmt::format("{} is out of range.", name),
                              .expected = expected,
                              .received = fmt::format("{}", received)});
}

/// Throws ModelError if the option is `given` and the loss is not one of `with`, which are those
/// that read it.
void only_of(const TrainingOptions& options, bool given, const char* name,
             std::initializer_list<std::string_view> with) {
  if (!given || std::find(with.begin(), with.end(), options.loss) != with.end()) return;
  throw ModelError(
      ErrorParts{.what = fmt::format("The loss has no {}.", name),
                 .expected = fmt::format("the loss {}", fmt::join(with, " or ")),
                 .received = options.loss.empty() ? "none: the model's own" : options.loss,
                 .remedy = fmt::format("Leave {} out, or choose another loss.", name)});
}

/// `v` before nodes that only hand it on.
Value handed_on(Value v) {
  while (v.producer() && (v.producer().op() == "Identity" || v.producer().op() == "Cast"))
    v = v.producer().input(0);
  return v;
}

/// Whether the node of `y` works along the last axis.
bool over_classes(Node n, Value y) {
  const int64_t axis = integer_of(n, "axis");
  return axis == -1 || (y.type().shape && axis == y.rank() - 1);
}

bool is_one_column(Value v) {
  return v.type().shape && !v.shape().empty() && v.shape().back().known() &&
         v.shape().back().value() == 1;
}

/// If `y` is 1 - σ(s) and σ(s) side by side, s; else null.
Value score_of_two(Value y) {
  static constexpr Pattern kComplement("Sub(1, p)");
  const Node n = handed_on(y).producer();
  if (!n || n.op() != "Concat" || n.input_count() != 2 || !over_classes(n, y)) return {};
  const Value p = handed_on(n.input(1));
  const auto m = match(kComplement, handed_on(n.input(0)).producer());
  if (!m || handed_on((*m)["p"]) != p || !p.producer() || p.producer().op() != "Sigmoid") return {};
  const Value s = p.producer().input(0);
  return is_float(s.dtype()) && is_one_column(s) ? s : Value();
}

/// If `y` is the exponentials of log-probabilities, these or scores; else null.
Value scores_of_exponentials(Value y) {
  const Node n = handed_on(y).producer();
  const Value logs = n && n.op() == "Exp" ? handed_on(n.input(0)) : Value();
  const Node p = logs ? logs.producer() : Node();
  if (!p || !is_float(logs.dtype())) return {};
  if (p.op() == "LogSoftmax") return over_classes(p, y) ? logs : Value();
  if (p.op() != "Sub" || !y.type().shape || y.rank() != 2 || !is_one_column(p.input(1))) return {};
  Node total = p.input(1).producer();  // rows of scores minus the logarithms of their sums
  if (total && total.op() == "Reshape") total = total.input(0).producer();
  if (!total || total.op() != "ReduceLogSumExp" || total.input(0) != p.input(0)) return {};
  const Tensor* axes = total.input_count() == 2 ? constant(total.input(1)) : nullptr;
  if (axes == nullptr || axes->dtype() != DType::i64 || axes->size() != 1) return {};
  const int64_t axis = *axes->data<int64_t>();
  return axis == 1 || axis == -1 ? p.input(0) : Value();
}

/// If `y` is what the loss itself would compute from scores, these scores; else `y`.
Value scores_of(Value y, const std::string& loss) {
  const Node n = handed_on(y).producer();
  const std::string_view makes = makes_of_scores(loss);
  if (n && makes == "Softmax" && n.op() == "Exp") {
    const Value scores = scores_of_exponentials(y);
    return scores ? scores : y;
  }
  if (!n || n.op() != makes || !is_float(n.input(0).dtype())) return y;
  return n.op() != "Softmax" || over_classes(n, y) ? n.input(0) : y;
}

/// As scores_of(); those of two classes, 0 and s, are written into the graph.
Value write_scores(Value y, const std::string& loss) {
  const Value s = makes_of_scores(loss) == "Softmax" ? score_of_two(y) : Value();
  return s ? concat({zeros_like(s), s}, -1) : scores_of(y, loss);
}

}  // namespace

bool may_be_one_element(const Type& type) {
  if (!type.shape) return true;
  return std::ranges::all_of(*type.shape, [](const Dim& d) { return !d.known() || is_one(d); });
}

std::vector<std::string> loss_names() {
  std::vector<std::string> names;
  for (const Loss& loss : kLosses) names.emplace_back(loss.name);
  return names;
}

bool takes_classes(const std::string& loss) {
  const Loss* row = find_loss(loss);
  return row != nullptr && row->of == Of::classes;
}

bool compares_elements(const std::string& loss) {
  const Loss* row = find_loss(loss);
  return row != nullptr && row->of == Of::broadcast_elements;
}

namespace {

/// Throws ModelError for a model of a loss that has no name, or that of a built-in loss, whose
/// labels have other forms.
void check_own_name(const TrainingOptions& options) {
  if (options.loss_model.empty()) return;
  if (!options.loss.empty() && find_loss(options.loss) == nullptr) return;
  throw ModelError(ErrorParts{
      .what = "The model of a loss needs a name of its own.",
      .node = "loss",
      .expected = "another name than those of built-in losses, with loss_model",
      .received = options.loss.empty() ? "none" : options.loss,
      .remedy = "Name it, for instance \"own\"; or leave loss_model out for a built-in loss."});
}

}  // namespace

void check_loss(const TrainingOptions& options) {
  check_own_name(options);
  const double delta = options.huber_delta, smoothing = options.label_smoothing;
  if (!(delta > 0 && fits_float32(delta)))
    refuse_number("huber_delta", "a positive number that is finite in float32", delta);
  if (!(smoothing >= 0 && smoothing <= 1)) refuse_number("label_smoothing", "0 to 1", smoothing);
  for (const double weight : options.class_weights) {
    if (!(weight >= 0 && fits_float32(weight))) {
      refuse_number("class_weights", "numbers of at least 0 that are finite in float32", weight);
    }
  }
  const std::vector<double>& weights = options.class_weights;
  if (!weights.empty() && std::ranges::count(weights, 0.0) == std::ssize(weights)) {
    throw ModelError(ErrorParts{.what = "All class weights are 0, so no label counts.",
                                .expected = "a weight above 0",
                                .received = fmt::format("{} times 0", weights.size()),
                                .remedy = "Correct class_weights (--class-weights)."});
  }
  only_of(options, delta != 1, "huber_delta", {"huber"});
  only_of(options, smoothing != 0, "label_smoothing", {"softmax_cross_entropy"});
  only_of(options, !options.class_weights.empty(), "class_weights",
          {"softmax_cross_entropy", "nll"});
  only_of(options, options.ignore_index.has_value(), "ignore_index",
          {"softmax_cross_entropy", "nll"});
}

void offer_output(Graph& graph, const TrainingOptions& options) {
  const auto& outputs = graph.outputs();
  const bool there = std::any_of(outputs.begin(), outputs.end(),
                                 [&](const Output& o) { return o.name == options.output; });
  if (options.output.empty() || there) return;
  const Value inner = graph.find(options.output);
  if (inner && inner.producer() && is_float(inner.dtype())) graph.add_output(options.output, inner);
}

/// The only output of floats; nullptr if there are several, or none.
const Output* only_float(const std::vector<Output>& outputs) {
  const Output* only = nullptr;
  for (const Output& o : outputs) {
    if (!is_float(o.value.dtype()) || o.value.type().kind != Kind::tensor) continue;
    if (only != nullptr) return nullptr;
    only = &o;
  }
  return only;
}

const Output& find_output(const Graph& graph, const TrainingOptions& options) {
  const auto& outputs = graph.outputs();
  if (outputs.empty()) throw ModelError("The model has no output.");
  const std::string name = options.output.empty() ? "loss" : options.output;
  if (options.output.empty() && outputs.size() == 1) return outputs[0];
  for (const Output& o : outputs) {
    if (o.name == name) return o;
  }
  const Output* only = options.output.empty() ? only_float(outputs) : nullptr;
  if (only != nullptr) return *only;
  if (options.output.empty()) {
    throw ModelError(
        ErrorParts{.what = "The model has several outputs, and none was chosen to train on.",
                   .expected = "the name of one of them",
                   .received = list_names(output_names(graph)),
                   .remedy = "Name it: output=\"NAME\", --output NAME."});
  }
  throw ModelError(ErrorParts{.what = "The model has no such output.",
                              .node = options.output,
                              .expected = nearest_names(options.output, output_names(graph)) +
                                          ", or another float value of the model",
                              .received = options.output});
}

Value loss_weight(Value loss) {
  Node n = loss.producer();
  const OpDef* def = n ? find_op(n.op()) : nullptr;
  while (def != nullptr && (def->view || n.op() == "Cast")) {
    loss = n.input(0);
    n = loss.producer();
    def = n ? find_op(n.op()) : nullptr;
  }
  if (apply_rules(kCrossEntropies, n, Match()) == nullptr) return {};
  if (loss != n.output(0) || text_of(n, "reduction") != "mean") return {};
  const DType dtype = n.input(2) ? n.input(2).dtype() : DType::f32;
  const LabelRows rows = label_rows(n, n.input(1), n.input(2), dtype);
  return rows.weights ? sum(rows.weights, {}, false) : Value();
}

std::vector<PatternRuleInfo> loss_patterns() {
  std::vector<PatternRuleInfo> list = probability_patterns();
  for (const PatternRuleInfo& info : list_rules(kCrossEntropies)) list.push_back(info);
  return list;
}

namespace {

/// The node that computes a value, before views and casts.
Node computed_by(Value v) {
  for (Node n = v.producer(); n; n = n.input(0).producer()) {
    const OpDef* def = find_op(n.op());
    if ((def == nullptr || !def->view) && n.op() != "Identity" && n.op() != "Cast") return n;
  }
  return {};
}

/// Whether values are scores, which no activation follows: what a layer computes, with its bias.
bool is_layer(Node n) {
  const auto is_product = [](const Node& node) {
    return node && (node.op() == "MatMul" || node.op() == "Gemm" || node.op() == "Conv");
  };
  if (is_product(n)) return true;
  return n && n.op() == "Add" &&
         (is_product(computed_by(n.input(0))) || is_product(computed_by(n.input(1))));
}

/// As doubts(), for losses of probabilities and of their logarithms.
std::string doubts_of_scores(Value y, const std::string& loss) {
  const bool logs = loss == "nll";
  if (!logs && loss != "binary_cross_entropy") return "";
  const Node n = computed_by(y), moved = before_moves(y).producer();
  const std::string takes = fmt::format("{} takes {}, but output '{}' ", loss,
                                        logs ? "log-probabilities" : "probabilities", y.name());
  if (logs && holds_probabilities(y)) {
    return takes + fmt::format(
                       "holds probabilities ('{}', {}). Choose softmax_cross_entropy, which reads "
                       "the scores before a Softmax.",
                       moved.name(), moved.op());
  }
  if (!is_layer(n)) return "";
  return takes + fmt::format("holds scores ('{}', {}). Choose {}, which takes scores.", n.name(),
                             n.op(),
                             logs ? "softmax_cross_entropy" : "binary_cross_entropy_with_logits");
}

/// As doubts(), for a cross entropy of one class.
std::string doubts_of_one_class(Value y, const std::string& loss) {
  if (loss != "softmax_cross_entropy" || !y.type().shape || y.rank() == 0) return "";
  const Dim& classes = y.shape().back();
  if (!classes.known() || classes.value() != 1) return "";
  return fmt::format(
      "{} of one class is 0 whatever the scores, but output '{}' is {}. Choose "
      "binary_cross_entropy_with_logits, which takes one score for two classes.",
      loss, y.name(), to_string(y.type()));
}

}  // namespace

std::string doubts(const Graph& graph, const TrainingOptions& options) {
  const std::string_view own = makes_of_scores(options.loss);
  const Value y = find_output(graph, options).value;
  if (std::string text = doubts_of_one_class(y, options.loss); !text.empty()) return text;
  if (own.empty()) return doubts_of_scores(y, options.loss);
  const Node n = before_moves(y).producer();
  if (!n || scores_of(y, options.loss) != y || (own == "Softmax" && score_of_two(y))) return "";
  const std::string at =
      fmt::format("{} applies {} itself, but output '{}' ", options.loss, own, y.name());
  if (n.op() == own) {
    return at + fmt::format(
                    "comes from one ('{}'): it is applied twice, which slows training down and "
                    "bounds the loss. Train on what the {} reads: output=\"{}\", --output {}.",
                    n.name(), own, n.input(0).name(), n.input(0).name());
  }
  if (!holds_probabilities(y)) return "";
  return at + fmt::format(
                  "holds probabilities already ('{}', {}), which slows training down and bounds "
                  "the loss. Train on the scores from which they are computed: name that value "
                  "by output (--output).",
                  n.name(), n.op());
}

bool reads_scores_within(const Graph& graph, const TrainingOptions& options) {
  const Value y = find_output(graph, options).value;
  return scores_of(y, options.loss) != y ||
         (makes_of_scores(options.loss) == "Softmax" && score_of_two(y));
}

AttachedLoss attach_loss(Graph& graph, const TrainingOptions& options) {
  Graph::Scope scope(graph, Phase::forward, "loss");
  const Value y = write_scores(find_output(graph, options).value, options.loss);
  if (!is_float(y.dtype()) || y.type().kind != Kind::tensor) {
    throw ShapeError(ErrorParts{.what = "Only a float output can be trained on.",
                                .node = y.name(),
                                .expected = "a tensor of a float dtype",
                                .received = to_string(y.type())});
  }
  AttachedLoss result;
  if (options.loss.empty()) {
    if (!may_be_one_element(y.type())) {
      throw ShapeError(
          ErrorParts{.what = "The output is not a loss.",
                     .node = y.name(),
                     .expected = "one element",
                     .received = to_string(y.type()),
                     .remedy = fmt::format("Choose a loss: {}.", fmt::join(loss_names(), ", "))});
    }
    result.loss = result.mean = y;
    return result;
  }
  if (is_own_loss(options)) {
    const OwnLoss own = own_loss(y, options);
    result.label = label_input(graph, options.label, own.label(), &result.label_added);
    const Value operands[] = {y, result.label};
    result.loss = result.mean = splice(own.graph, graph, operands)[0];
    return result;
  }
  const Loss& loss = loss_of(options);
  Type labels{y.dtype(), y.type().shape};
  if (loss.of == Of::classes) {
    if (y.rank() < 2) {
      throw ShapeError(ErrorParts{.what = fmt::format("{} needs rows of class scores.", loss.name),
                                  .node = y.name(),
                                  .expected = "[rows, classes], or more axes before the classes",
                                  .received = to_string(y.type())});
    }
    labels = {DType::i64, Shape(y.shape().begin(), y.shape().end() - 1)};
  }
  result.label = label_input(graph, options.label, std::move(labels), &result.label_added);
  const ClassLoss parts = loss.build(y, result.label, options);
  result.loss = parts.loss;
  result.mean = parts.mean;
  return result;
}

}  // namespace steep
