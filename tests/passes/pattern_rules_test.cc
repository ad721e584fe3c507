// Each pattern rule of each pass, and of losses, matches in a small graph: STEEP_LOGS=patterns logs
// its name.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <set>

#include "autodiff/gradient.h"
#include "autodiff/unrolled_scan.h"
#include "ir/seed.h"
#include "ops/build.h"
#include "passes/batch_norm_graph.h"
#include "passes/pipeline.h"
#include "runtime/logs.h"
#include "train/loss.h"

namespace steep {
namespace {

using Names = std::vector<std::string>;
using Maskers = std::function<Value(Graph&, Value)>;

struct Case {
  Names rules;
  std::function<void(Graph&)> build;
};

Type matrix(int64_t rows, int64_t columns) { return {DType::f32, Shape{rows, columns}}; }

Value power(Value x, double exponent) {
  return apply("Pow", {x, scalar(x.graph(), exponent, DType::f32)});
}

void gelu(Graph& g, bool exact) {
  const Value x = g.add_input("x", matrix(3, 4));
  const Value curve = exact ? erf(x / std::numbers::sqrt2)
                            : tanh((x + power(x, 3) * 0.044715) * std::sqrt(2 / std::numbers::pi));
  g.add_output("y", exact ? x * (curve + 1.0) * 0.5 : x / 2.0 * (curve + 1.0));
}

void layer_normalization(Graph& g, bool by_power) {
  const Value x = g.add_input("x", matrix(3, 4));
  const Value scale = g.add_input("scale", {DType::f32, Shape{4}});
  const Value d = x - mean(x, {-1}, true);
  const Value variance = mean(by_power ? power(d, 2) : d * d, {-1}, true);
  g.add_output("y", d / sqrt(variance + 1e-5) * scale + scale);
}

/// A sigmoid in parts, of numbers at which these overflow too.
void sigmoid(Graph& g, bool reciprocal) {
  const Value x = g.add_input("x", matrix(3, 4));
  const Value sum = apply("Exp", {reciprocal ? x * -1.0 : -x}) + 1.0;
  g.add_output("y", reciprocal ? apply("Reciprocal", {sum}) : 1.0 / sum);
}

/// A linear recurrence over rows, unrolled.
void scan(Graph& g, int64_t rows) {
  const Value x = g.add_input("x", matrix(rows, 3));
  g.add_output("y", testing::unrolled_scan(x * 0.5, x, rows));
}

/// An attention with its gradients; `of_scores` and `of_weights` change the scores and the weights.
void attention(Graph& g, const Maskers& of_scores = {}, const Maskers& of_weights = {},
               const char* softmax = "Softmax", bool turned = false) {
  const Type heads{DType::f32, turned ? Shape{2, 5, 3, 4} : Shape{2, 3, 5, 4}};
  const Value q = g.add_input("q", heads), k = g.add_input("k", heads), v = g.add_input("v", heads);
  const auto split = [&](Value x) { return turned ? transpose(x, {0, 2, 1, 3}) : x; };
  Value scores = matmul(turned ? split(q) * 0.5 : q, swap_last(turned ? split(k) / 3.0 : k));
  if (of_scores) scores = of_scores(g, scores);
  Value weights = apply(softmax, {scores}, {{"axis", int64_t{-1}}});
  if (of_weights) weights = of_weights(g, weights);
  const Value y = matmul(weights, split(v));
  g.add_output("y", y);
  const std::vector<Value> dy{g.add_input("dy", y.type())};
  const std::vector<Value> outputs{y}, wrt{q, k, v};
  for (Value d : add_gradients(g, outputs, dy, wrt, Phase::forward)) g.add_output(d.name(), d);
  g.prune();
}

/// 0, 1, 2, … along the rows or the columns of the scores.
Value numbers(Graph& g, const Dims& dims) {
  return g.add_constant(Tensor::from<int64_t>({0, 1, 2, 3, 4}, dims));
}
Value columns(Graph& g) { return numbers(g, {1, 5}); }
Value rows(Graph& g) { return numbers(g, {5, 1}); }

constexpr double kShut = -std::numeric_limits<double>::infinity();

/// Attention with a mask that is computed by a comparison.
std::function<void(Graph&)> under(const char* op, bool rows_first, bool inverted) {
  return [=](Graph& g) {
    attention(g, [=](Graph& graph, Value s) {
      const Value a = rows_first ? rows(graph) : columns(graph);
      const Value b = rows_first ? columns(graph) : rows(graph);
      const Value keep = apply(op, {a, b});
      return inverted ? where(keep, kShut, s) : where(keep, s, kShut);
    });
  };
}

void surrounded_product(Graph& g) {
  const Value x = g.add_input("x", matrix(5, 7)), w = g.add_input("w", matrix(5, 3));
  const Value bias = g.add_input("bias", {DType::f32, Shape{3}});
  const Value y = matmul(transpose(x * 0.5, {1, 0}), w / 3.0) * 2.0 / 7.0 + bias;
  g.add_output("y", transpose(apply("Relu", {y}), {1, 0}));
}

void vocabulary(Graph& g) {
  const Value x = g.add_input("x", matrix(520, 24)), w = g.add_input("w", matrix(24, 52000));
  const Value bias = g.add_input("bias", {DType::f32, Shape{52000}});
  const Value labels = g.add_input("labels", {DType::i64, Shape{520}});
  const Attrs sum{{"reduction", std::string("sum")}};
  const Value logits = apply("steep.MatMul", {x, w, bias});
  const auto loss = apply_n("steep.SoftmaxCrossEntropy", std::vector{logits, labels}, 3, sum);
  g.add_output("loss", loss[0]);
  const Graph::Scope backward(g, Phase::backward, "grad");
  const Value d = apply("steep.SoftmaxCrossEntropyGrad",
                        {scalar(g, 1, DType::f32), logits, labels, loss[1], loss[2]}, sum);
  g.add_output("dx", apply("steep.MatMul", {d, w}, {{"perm_b", Ints{1, 0}}}), Phase::backward);
  g.add_output("dw", apply("steep.MatMul", {x, d}, {{"perm_a", Ints{1, 0}}}), Phase::backward);
  g.add_output("db", apply("steep.SumTo", {d, ints(g, {52000})}), Phase::backward);
}

/// Scores of bfloat16, whose loss is float32, and their gradient.
void narrow_scores(Graph& g) {
  const Value scores = g.add_input("scores", {DType::bf16, Shape{6, 40}});
  const Value labels = g.add_input("labels", {DType::i64, Shape{6}});
  const Value wide = cast(scores, DType::f32);
  const auto loss = apply_n("steep.SoftmaxCrossEntropy", std::vector{wide, labels}, 3);
  g.add_output("loss", loss[0]);
  const Graph::Scope backward(g, Phase::backward, "grad");
  const Value d = apply("steep.SoftmaxCrossEntropyGrad",
                        {scalar(g, 1, DType::f32), wide, labels, loss[1], loss[2]});
  g.add_output("d", cast(d, DType::bf16), Phase::backward);
}

void table_in_parts(Graph& g) {
  const Value x = g.add_input("x", matrix(2100, 1000));
  const Value whole = concat({tanh(x), exp(x)}, 1);
  const std::vector<Value> parts = apply_n(
      "Split", std::vector{apply("Softmax", {whole}, {{"axis", int64_t{1}}}), ints(g, {1200, 800})},
      2, {{"axis", int64_t{1}}});
  for (const Value part : parts) g.add_output("y", sum(part, {}, false));
}

void loss_over_parts(Graph& g) {
  const Value x = g.add_input("x", matrix(2100, 1000));
  const Value labels = g.add_input("labels", {DType::i64, Shape{2100}});
  const Value whole = concat({tanh(x), exp(x)}, 1);
  g.add_output("loss", apply_n("steep.SoftmaxCrossEntropy", std::vector{whole, labels}, 3)[0]);
}

void sum_with_gather(Graph& g) {
  const Value table = g.add_input("table", matrix(6, 4)), dy = g.add_input("dy", matrix(3, 4));
  const Value slices =
      apply("steep.GatherGrad", {dy, ints(g, {5, 0, 5}), ints(g, {6, 4})}, {{"axis", int64_t{0}}});
  g.add_output("y", tanh(table) + slices);
}

void large_normalisation(Graph& g) {
  const Value x = g.add_input("x", matrix(512, 512)),
              w = g.add_input("w", {DType::f32, Shape{512}});
  const Value y =
      apply_n("LayerNormalization", std::vector{x, w, w}, 3, {{"axis", int64_t{-1}}})[0];
  g.add_output("y", sum(y, {}, false));
  const Graph::Scope backward(g, Phase::backward, "grad");
  g.add_output("dw", matmul(transpose(y, {1, 0}), x), Phase::backward);
}

void activated_batch_norm(Graph& g, const char* curve) {
  g = std::move(testing::BatchNormGraph(curve, {DType::f32, Shape{2, 3, 4, 4}}).g);
}

void recurrent_layer_and_gradient(Graph& g) {
  const Value x = g.add_input("x", {DType::f32, Shape{5, 2, 3}}),
              w = g.add_input("w", {DType::f32, Shape{1, 16, 3}}),
              r = g.add_input("r", {DType::f32, Shape{1, 16, 4}});
  const std::vector<Value> layer{x, w, r, {}, {}, {}, {}, {}};
  Attrs attrs{{"hidden_size", int64_t{4}}};
  const Value y = apply_n("LSTM", layer, 3, attrs)[0];
  g.add_output("y", y);
  const Graph::Scope backward(g, Phase::backward, "grad");
  std::vector<Value> operands{y, {}, {}};
  operands.insert(operands.end(), layer.begin(), layer.end());
  attrs.set("cell", std::string("LSTM"));
  g.add_output("dw", apply_n("steep.RecurrentGrad", operands, 7, attrs)[1], Phase::backward);
}

void cast_before_chain(Graph& g) {
  const Value x = g.add_input("x", {DType::bf16, Shape{3, 4}});
  g.add_output("y", tanh(cast(x, DType::f32)) + 1.0);
}

void assigned_state(Graph& g) {
  const Value state = g.add_state("state", matrix(3, 4)), x = g.add_input("x", matrix(3, 4));
  g.add_update(state, apply("steep.Assign", {state, state * 0.5 + x}));
  fuse_elementwise(g);
}

void products(Graph& g) {
  const Value x = g.add_input("x", matrix(4, 4)), w = g.add_input("w", matrix(4, 4));
  const Value narrow = g.add_input("narrow", {DType::bf16, Shape{4, 4}});
  const Value h = matmul(transpose(x, {1, 0}), w);
  const auto halves =
      apply_n("Split", std::vector{h}, 2, {{"axis", int64_t{0}}, {"num_outputs", int64_t{2}}});
  const Value whole = apply("Concat", {halves[0], halves[1]}, {{"axis", int64_t{0}}});
  g.add_output("y", tanh(whole));
  g.add_output("relu", apply("steep.MatMul", {x, w}, {{"activation", std::string("Relu")}}));
  g.add_output("twin", cast(w, DType::bf16));
  g.add_output("widened", matmul(cast(narrow, DType::f32), w) + x);
  g.add_output("norm", apply("steep.GlobalNorm", {x, w}));
  g.add_output("sent", apply("steep.Deliver", {x}));
}

/// Attention with a mask that hides tokens.
void padded(Graph& g, const Maskers& of_scores) {
  const Type heads{DType::f32, Shape{2, 3, 5, 4}};
  const Value q = g.add_input("q", heads), k = g.add_input("k", heads), v = g.add_input("v", heads);
  const Value weights =
      apply("Softmax", {of_scores(g, matmul(q, swap_last(k)))}, {{"axis", int64_t{-1}}});
  const Value dropped =
      apply("steep.Dropout", {weights, seed_of(g)}, {{"ratio", 0.5}, {"stream", int64_t{1}}});
  g.add_output("y", matmul(dropped, v));
}

/// Attention of one query, whose dropout has the random numbers of some rows.
void one_query(Graph& g) {
  const Value q = g.add_input("q", {DType::f32, Shape{2, 3, 1, 4}});
  const Value k = g.add_input("k", {DType::f32, Shape{2, 3, 5, 4}});
  const Value weights = apply("Softmax", {matmul(q, swap_last(k))}, {{"axis", int64_t{-1}}});
  const Value matrix = apply("Flatten", {weights}, {{"axis", int64_t{3}}});
  const Value some =
      apply("steep.DropoutRows",
            {matrix, ints(g, {0, 5, 10, 15, 20, 25}), ints(g, {2, 3, 5}), seed_of(g)},
            {{"ratio", 0.5}, {"stream", int64_t{1}}});
  g.add_output("y", matmul(reshape(some, Ints{2, 3, 1, 5}), k));
}

Value padding(Graph& g, DType dtype) { return g.add_input("padding", {dtype, Shape{2, 1, 1, 5}}); }

/// A loss with an ignored label, on `scores_of` applied to scores[2, 5, 7].
std::function<void(Graph&)> ignoring(const char* op, const Shape& labels,
                                     const std::function<Value(Graph&, Value)>& scores_of) {
  return [=](Graph& g) {
    const Value x = g.add_input("x", {DType::f32, Shape{2, 5, 4}});
    const Value scores = scores_of(g, matmul(x, g.add_input("w", matrix(4, 7))));
    const Value truth = g.add_input("labels", {DType::i64, labels});
    const int outputs = op == std::string("steep.SoftmaxCrossEntropy") ? 3 : 1;
    const Attrs attrs{{"ignore_index", int64_t{-100}}, {"reduction", std::string("mean")}};
    g.add_output("loss", apply_n(op, std::vector{scores, truth}, outputs, attrs)[0]);
  };
}

Value joined(Graph& g, Value scores) { return reshape(scores, ints(g, {10, 7})); }
Value moved(Graph& /*g*/, Value scores) { return transpose(scores, {0, 2, 1}); }
Value log_softmax(Value scores, int64_t axis) {
  return apply("LogSoftmax", {scores}, {{"axis", axis}});
}

void taken_tokens(Graph& g, bool one) {
  const Value x = g.add_input("x", {DType::f32, Shape{2, 5, 4}});
  const Value h = matmul(x, g.add_input("w", matrix(4, 7)));
  const std::vector<Value> first{h, ints(g, {0}), ints(g, {1}), ints(g, {1})};
  g.add_output("y", one ? apply("Gather", {h, ints(g, {0})}, {{"axis", int64_t{1}}})
                        : apply_n("Slice", first, 1)[0]);
}

const std::vector<Case>& cases_of_read_rows() {
  static const std::vector<Case> kCases = {
      {{"compute_read_rows/attention", "compute_read_rows/scores", "compute_read_rows/added_mask",
        "compute_read_rows/scale", "compute_read_rows/dropout", "compute_read_rows/product"},
       [](Graph& g) {
         padded(g, [](Graph& graph, Value s) { return padding(graph, DType::f32) + s / 2.0; });
       }},
      {{"compute_read_rows/dropout_of_rows"}, one_query},
      {{"compute_read_rows/scores_that_stay"},
       [](Graph& g) {
         padded(g, [](Graph& graph, Value s) {
           return where(padding(graph, DType::boolean), s, kShut);
         });
       }},
      {{"compute_read_rows/scores_that_go"},
       [](Graph& g) {
         padded(g, [](Graph& graph, Value s) {
           return where(padding(graph, DType::boolean), kShut, s);
         });
       }},
      {{"compute_read_rows/cross_entropy_of_rows"},
       ignoring("steep.SoftmaxCrossEntropy", {10}, joined)},
      {{"compute_read_rows/cross_entropy"}, ignoring("SoftmaxCrossEntropyLoss", {10}, joined)},
      {{"compute_read_rows/cross_entropy_of_moved_classes"},
       ignoring("SoftmaxCrossEntropyLoss", {2, 5}, moved)},
      {{"compute_read_rows/likelihood"},
       ignoring("NegativeLogLikelihoodLoss", {10},
                [](Graph& g, Value s) { return log_softmax(joined(g, s), 1); })},
      {{"compute_read_rows/likelihood_of_moved_classes"},
       ignoring("NegativeLogLikelihoodLoss", {2, 5},
                [](Graph& g, Value s) { return log_softmax(moved(g, s), 1); })},
      {{"compute_read_rows/likelihood_of_joined_rows"},
       ignoring("NegativeLogLikelihoodLoss", {10},
                [](Graph& g, Value s) { return joined(g, log_softmax(s, 2)); })},
      {{"compute_read_rows/token"}, [](Graph& g) { taken_tokens(g, true); }},
      {{"compute_read_rows/tokens"}, [](Graph& g) { taken_tokens(g, false); }},
  };
  return kCases;
}

const std::vector<Case>& cases_of_other_passes() {
  static const std::vector<Case> kCases = {
      {{"recognise/gelu", "recognise/exact_gate", "recognise/factors", "recognise/product",
        "recognise/quotient"},
       [](Graph& g) { gelu(g, true); }},
      {{"recognise/tanh_gate", "recognise/power", "recognise/sum", "recognise/divided_factors"},
       [](Graph& g) { gelu(g, false); }},
      {{"recognise/layer_normalization_by_power"}, [](Graph& g) { layer_normalization(g, true); }},
      {{"recognise/layer_normalization_by_product"},
       [](Graph& g) { layer_normalization(g, false); }},
      {{"recognise/sigmoid"}, [](Graph& g) { sigmoid(g, true); }},
      {{"recognise/sigmoid_by_quotient"}, [](Graph& g) { sigmoid(g, false); }},
      {{"recognise/padded_convolution"},
       [](Graph& g) {
         const Value x = g.add_input("x", {DType::f32, Shape{1, 2, 5, 5}});
         const Value w = g.add_input("w", {DType::f32, Shape{3, 2, 3, 3}});
         const Value pads = ints(g, {0, 0, 1, 0, 0, 0, 1, 1});
         g.add_output("y", apply("Conv", {apply("Pad", {x, pads}), w}));
       }},
      {{"recognise/scan"}, [](Graph& g) { scan(g, 4); }},
      {{"recognise/scan_of_odd_length"}, [](Graph& g) { scan(g, 5); }},
      {{"recognise/grouped_product_of_transposed"},
       [](Graph& g) {
         const Value w = g.add_input("w", {DType::f32, Shape{2, 3, 4}});
         const Value ends = g.add_input("ends", {DType::i64, Shape{2}});
         const Value x = g.add_input("x", matrix(5, 4));
         g.add_output("y", apply("steep.GroupedMatMul", {x, transpose(w, {0, 2, 1}), ends}));
       }},
      {{"fuse_attention/softmax", "fuse_attention/scores", "fuse_attention/product",
        "fuse_attention/softmax_gradient", "fuse_attention/values_gradient",
        "fuse_attention/queries_gradient", "fuse_attention/keys_gradient"},
       [](Graph& g) { attention(g); }},
      {{"fuse_attention/safe_softmax", "fuse_attention/bias", "fuse_attention/keep",
        "fuse_attention/divide", "fuse_attention/dropout"},
       [](Graph& g) {
         attention(
             g,
             [](Graph& graph, Value s) {
               const Value keep = graph.add_input("keep", {DType::boolean, Shape{5, 5}});
               return where(keep, s / 2.0, -3.0) + graph.add_input("bias", matrix(5, 5));
             },
             [](Graph& graph, Value p) {
               return apply("steep.Dropout", {p, seed_of(graph)},
                            {{"ratio", 0.5}, {"stream", int64_t{1}}});
             },
             "steep.SafeSoftmax");
       }},
      {{"fuse_attention/mask", "fuse_attention/multiply", "fuse_attention/zero_nan"},
       [](Graph& g) {
         attention(
             g,
             [](Graph& graph, Value s) {
               return where(graph.add_input("gone", {DType::boolean, Shape{5, 5}}), -3.0, s * 0.5);
             },
             [](Graph&, Value p) { return where(apply("IsNaN", {p}), 0, p); });
       }},
      {{"fuse_attention/multiplied_heads", "fuse_attention/divided_heads",
        "fuse_attention/transposed_heads"},
       [](Graph& g) { attention(g, {}, {}, "Softmax", true); }},
      {{"fuse_attention/causal_keep"}, under("LessOrEqual", false, false)},
      {{"fuse_attention/causal_keep_turned"}, under("GreaterOrEqual", true, false)},
      {{"fuse_attention/causal_mask"}, under("Greater", false, true)},
      {{"fuse_attention/causal_mask_turned"}, under("Less", true, true)},
      {{"fuse_attention/bias_of_mask", "fuse_attention/repeated_mask"},
       [](Graph& g) {
         attention(g, [](Graph& graph, Value s) {
           const Value keep = apply("LessOrEqual", {columns(graph), rows(graph)});
           const Value all = apply("Expand", {keep, ints(graph, {2, 1, 5, 5})});
           return s + where(all, scalar(graph, 0, DType::f32), kShut);
         });
       }},
      {{"fuse_matmul/product", "fuse_matmul/transposed_operand", "fuse_matmul/multiplied_operand",
        "fuse_matmul/divided_operand", "fuse_matmul/multiplied_result",
        "fuse_matmul/divided_result", "fuse_matmul/bias", "fuse_matmul/relu",
        "fuse_matmul/transposed_result"},
       surrounded_product},
      {{"fuse_batch_norm/relu", "fuse_batch_norm/relu_gradient"},
       [](Graph& g) { activated_batch_norm(g, "Relu"); }},
      {{"fuse_batch_norm/clip", "fuse_batch_norm/clip_gradient"},
       [](Graph& g) { activated_batch_norm(g, "Clip"); }},
      {{"fuse_batch_norm/hardtanh", "fuse_batch_norm/hardtanh_gradient"},
       [](Graph& g) { activated_batch_norm(g, "Hardtanh"); }},
      {{"precision/product", "precision/epilogue", "precision/move", "precision/sum",
        "precision/norm", "precision/narrowing_cast", "precision/split", "precision/concat",
        "precision/widened", "precision/deliver"},
       products},
      {{"chunk_logits/loss", "chunk_logits/scores", "chunk_logits/gradient",
        "chunk_logits/left_product", "chunk_logits/right_product", "chunk_logits/bias_sum"},
       vocabulary},
      {{"chunk_logits/narrow"}, narrow_scores},
      {{"part_by_part/concat", "part_by_part/split"}, table_in_parts},
      {{"part_by_part/loss"}, loss_over_parts},
      {{"fuse_gather_grad/sum"}, sum_with_gather},
      {{"recompute/layer_normalization"}, large_normalisation},
      {{"keep_trace/recurrent"}, recurrent_layer_and_gradient},
      {{"fuse_elementwise/border_cast"}, cast_before_chain},
      {{"write_through/assign", "write_through/fused"}, assigned_state},
  };
  return kCases;
}

/// A graph whose output is `make` applied to probabilities[3, 2].
std::function<void(Graph&)> output_of(const std::function<Value(Graph&, Value)>& make) {
  return [=](Graph& g) { g.add_output("y", make(g, g.add_input("p", matrix(3, 2)))); };
}

const std::vector<Case>& cases_of_losses() {
  static const std::vector<Case> kCases = {
      {{"loss/probabilities", "loss/moved", "loss/bounded"}, output_of([](Graph& g, Value x) {
         const Value p = apply("Softmax", {x}, {{"axis", int64_t{-1}}});
         return apply("Max", {scalar(g, 1e-7, DType::f32), transpose(p, {1, 0})});
       })},
      {{"loss/logistic"}, output_of([](Graph& g, Value x) {
         return apply("Reciprocal", {apply("Exp", {x}) + scalar(g, 1, DType::f32)});
       })},
      {{"loss/logistic_quotient"}, output_of([](Graph& g, Value x) {
         const Value one = scalar(g, 1, DType::f32);
         return one / (one + apply("Exp", {x}));
       })},
      {{"loss/complements"}, output_of([](Graph& g, Value p) {
         return apply("Concat", {scalar(g, 1, DType::f32) - p, p}, {{"axis", int64_t{1}}});
       })},
      {{"loss/shares"}, output_of([](Graph&, Value p) { return p / sum(p, {1}, true); })},
      {{"loss/normalized"}, output_of([](Graph&, Value p) {
         return apply("LpNormalization", {p}, {{"p", int64_t{1}}});
       })},
      {{"loss/exponentials"},
       output_of([](Graph&, Value p) { return apply("Exp", {apply("LogSoftmax", {p})}); })},
      {{"loss/cross_entropy"}, ignoring("SoftmaxCrossEntropyLoss", {10}, joined)},
  };
  return kCases;
}

std::vector<Case> cases() {
  std::vector<Case> all = cases_of_other_passes();
  for (const auto* more : {&cases_of_read_rows(), &cases_of_losses()})
    all.insert(all.end(), more->begin(), more->end());
  return all;
}

void ask_about_loss(Graph& g) {
  TrainingOptions options;
  options.loss = "binary_cross_entropy_with_logits";
  doubts(g, options);
  loss_weight(g.outputs()[0].value);
}

/// All passes and other functions that have pattern rules.
std::vector<Pass> passes_with_rows() {
  std::vector<Pass> found{{.name = "loss", .run = ask_about_loss, .patterns = loss_patterns}};
  for (const auto& list : {early_passes(), passes()}) {
    for (const Pass& pass : list) {
      if (pass.patterns != nullptr) found.push_back(pass);
    }
  }
  return found;
}

/// The pass whose rules have this name.
Pass pass_of(const std::string& rule) {
  for (const Pass& pass : passes_with_rows()) {
    for (const PatternRuleInfo& info : pass.patterns()) {
      if (info.name == rule) return pass;
    }
  }
  throw std::invalid_argument("no pass has the rule " + rule);
}

/// The log of a pass under STEEP_LOGS=patterns.
std::string told(const Pass& pass, Graph& g) {
  set_logs("patterns");
  ::testing::internal::CaptureStderr();
  if (pass.run_for != nullptr) {
    pass.run_for(g, Devices::host_alone());
  } else {
    pass.run(g);
  }
  std::string text = ::testing::internal::GetCapturedStderr();
  set_logs("");
  return text;
}

/// The operators in a pattern.
Names operators_in(std::string_view pattern) {
  const auto is_letter = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_';
  };
  Names names{""};
  for (const char c : pattern) {
    if (is_letter(c)) {
      names.back() += c;
    } else if (c == '(' || c == '{' || c == '|') {
      names.emplace_back();
    } else {
      names.back().clear();
    }
  }
  names.pop_back();
  return names;
}

TEST(PatternRules, EachMatchesInItsGraph) {
  for (const Case& c : cases()) {
    Graph g;
    c.build(g);
    const std::string before = to_text(g);
    const std::string text = told(pass_of(c.rules[0]), g);
    g.prune();
    verify(g, c.rules[0]);
    for (const std::string& rule : c.rules) {
      EXPECT_NE(text.find("[patterns] " + rule + " "), std::string::npos)
          << rule << " does not match in\n"
          << before << "which has\n"
          << text;
    }
  }
}

TEST(PatternRules, EachHasAGraphAReasonAndKnownOperators) {
  std::set<std::string> listed, tested;
  for (const Pass& pass : passes_with_rows()) {
    for (const PatternRuleInfo& rule : pass.patterns()) {
      SCOPED_TRACE(rule.name);
      EXPECT_TRUE(listed.emplace(rule.name).second) << "two rules have one name";
      EXPECT_TRUE(pass.name.starts_with(rule.name.substr(0, rule.name.find('/'))));
      EXPECT_TRUE(rule.reason.size() > 10 && rule.reason.ends_with('.')) << rule.reason;
      EXPECT_FALSE(operators_in(rule.pattern).empty());
      for (const std::string& op : operators_in(rule.pattern))
        EXPECT_NE(find_op(op), nullptr) << op << " is no operator";
    }
  }
  for (const Case& c : cases()) tested.insert(c.rules.begin(), c.rules.end());
  EXPECT_EQ(listed, tested);
}

}  // namespace
}  // namespace steep
