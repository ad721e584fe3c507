// Each pass: the rewrite happens where it should, and results of a run stay the same.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "autodiff/gradient.h"
#include "device/device.h"
#include "ir/comparison_key.h"
#include "ir/seed.h"
#include "ops/build.h"
#include "passes/pipeline.h"
#include "passes/run_graph.h"
#include "passes/specialise.h"
#include "program/compile.h"
#include "program/program.h"
#include "steep/error.h"

namespace steep {
namespace {

using testing::after;
using testing::count;
using testing::inputs_of;
using testing::matrix;
using testing::random_tensor;
using testing::results;

/// Runs the graph with all passes and with none, and expects equal results.
void expect_same_results(const Graph& g) {
  std::set<std::string> all;
  for (const Pass& p : passes()) all.insert(std::string(p.name));
  const std::vector<Tensor> inputs = inputs_of(g);
  const auto with = results(Program(g), inputs);
  const auto without = results(Program(g, {.disabled_passes = all}), inputs);
  ASSERT_EQ(with.size(), without.size());
  for (size_t i = 0; i < with.size(); ++i) {
    ASSERT_EQ(with[i].dims(), without[i].dims());
    for (int64_t k = 0; k < with[i].size(); ++k) {
      const float a = with[i].data<float>()[k], b = without[i].data<float>()[k];
      ASSERT_NEAR(a, b, 1e-4F * (1 + std::abs(b))) << "output " << i << ", element " << k;
    }
  }
}

Graph specialised(const Graph& g, const Type& type) {
  Specialised s = specialise_known(g, std::span(&type, 1), Devices::host_alone());
  EXPECT_TRUE(s.deferred.empty());
  return std::move(s.graph);
}

TEST(FuseMatmul, TakesInTransposesScaleBiasAndRelu) {
  Graph g;
  Value x = g.add_input("x", matrix(5, 7)), w = g.add_input("w", matrix(3, 5));
  Value b = g.add_input("b", {DType::f32, Shape{3}});
  Value y = matmul(transpose(x, {1, 0}) * 0.5, transpose(w, {1, 0})) + b;
  g.add_output("y", transpose(apply("Relu", {y}), {1, 0}));
  const Graph fused = after(g, fuse_matmul);
  ASSERT_EQ(fused.node_count(), 1U) << to_text(fused);
  const Attrs& attrs = fused.nodes()[0].attrs();
  EXPECT_EQ(attrs.ints("perm_a"), (Ints{1, 0}));
  EXPECT_EQ(attrs.ints("perm_y"), (Ints{1, 0}));
  EXPECT_EQ(attrs.real("alpha", 1), 0.5);
  EXPECT_EQ(attrs.string("activation", ""), "Relu");
  expect_same_results(g);
}

TEST(FuseMatmul, LeavesFactorsThatChangeWhatOverflows) {
  for (const double c : {0.0, 1e-20, 1e20, 1e-40, double{INFINITY}, double{NAN}}) {
    for (const bool divides : {false, true}) {
      const auto times = [&](Value x) { return divides ? x / c : x * c; };
      Graph of_operand, of_result;
      const Value x = of_operand.add_input("x", matrix(2, 3));
      of_operand.add_output("y", matmul(times(x), of_operand.add_input("w", matrix(3, 2))));
      EXPECT_EQ(count(after(of_operand, fuse_matmul), "steep.MatMul"), 0) << c;
      const Value a = of_result.add_input("a", matrix(2, 3));
      of_result.add_output("y", times(matmul(a, of_result.add_input("b", matrix(3, 2)))));
      EXPECT_EQ(count(after(of_result, fuse_matmul), "steep.MatMul"), 0) << c;
    }
  }
}

TEST(FuseMatmul, SplitsHeadsByStrides) {
  Graph g;
  Value q = g.add_input("q", {DType::f32, Shape{2, 6, 3, 4}}),
        k = g.add_input("k", {DType::f32, Shape{2, 6, 3, 4}});
  g.add_output("scores", matmul(transpose(q, {0, 2, 1, 3}), transpose(k, {0, 2, 3, 1})));
  EXPECT_EQ(after(g, fuse_matmul).node_count(), 1U);
  expect_same_results(g);
}

TEST(FuseMatmul, KeepsWhatOthersRead) {
  Graph g;
  Value x = g.add_input("x", matrix(4, 4));
  Value product = matmul(x, x);
  Value y = product + g.add_input("b", {DType::f32, Shape{4}});
  g.add_output("y", y);
  g.add_output("product", product);
  const Graph fused = after(g, fuse_matmul);
  EXPECT_EQ(count(fused, "MatMul"), 1);
  EXPECT_EQ(count(fused, "Add"), 1);
  expect_same_results(g);
}

TEST(FuseMatmul, LeavesAnAddOfAFullMatrix) {
  Graph g;
  Value x = g.add_input("x", matrix(4, 4));
  g.add_output("y", matmul(x, x) + x);
  EXPECT_EQ(count(after(g, fuse_matmul), "Add"), 1);
  expect_same_results(g);
}

/// The loss of labels under x w (+ b), with the gradients of x, w and b, as differentiation makes
/// them; 520 rows, 52,000 classes.
struct Vocabulary {
  Graph g;
  Value logits;

  explicit Vocabulary(const std::string& reduction, bool tied, bool ignores, bool heads = false) {
    Value x = g.add_input("x", {DType::f32, heads ? Shape{520, 4, 6} : Shape{5, 104, 24}});
    if (heads) x = reshape(x, {5, 104, 24});
    Value w = g.add_input("w", tied ? matrix(52000, 24) : matrix(24, 52000));
    Value b = g.add_input("b", {DType::f32, Shape{52000}});
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < 520; ++i)
      labels.push_back(ignores && i % 3 == 0 ? -100 : i * 17 % 52000);
    Value t = g.add_constant(Tensor::from(labels, {520}));
    logits = matmul(x, tied ? transpose(w, {1, 0}) : w) + b;
    Attrs attrs{{"reduction", reduction}};
    if (ignores) attrs.set("ignore_index", int64_t{-100});
    const Value flat = reshape(logits, {-1, 52000});
    const std::vector<Value> loss =
        apply_n("steep.SoftmaxCrossEntropy", std::vector{flat, t}, 3, attrs);
    g.add_output("loss", loss[0]);
    const Graph::Scope backward(g, Phase::backward, "grad");
    const Value seed = scalar(g, 3, DType::f32);
    const Value dy =
        reshape(apply("steep.SoftmaxCrossEntropyGrad", {seed, flat, t, loss[1], loss[2]}, attrs),
                {5, 104, 52000});
    const Value rows = apply("Flatten", {dy}, {{"axis", int64_t{2}}});
    const Value of_x = apply("Flatten", {x}, {{"axis", int64_t{2}}});
    g.add_output("dx", matmul(dy, tied ? w : transpose(w, {1, 0})), Phase::backward);
    g.add_output(
        "dw", tied ? matmul(transpose(rows, {1, 0}), of_x) : matmul(transpose(of_x, {1, 0}), rows),
        Phase::backward);
    g.add_output("db", apply("steep.SumTo", {dy, ints(g, {52000})}), Phase::backward);
  }
};

Graph chunked(Graph g) { return after(after(std::move(g), fuse_matmul), chunk_logits); }

TEST(ChunkLogits, ComputesLossAndGradientsOfAChunkBeforeTheNextOne) {
  for (const char* reduction : {"mean", "sum"}) {
    for (const bool tied : {false, true}) {
      for (const bool ignores : {false, true}) {
        const Graph g = Vocabulary(reduction, tied, ignores).g;
        const Graph split = chunked(g);
        EXPECT_EQ(count(split, "steep.SoftmaxCrossEntropy"), 2) << to_text(split);
        std::vector<std::string> order;
        for (Node n : split.nodes()) {
          if (n.op().starts_with("steep.SoftmaxCrossEntropy")) order.push_back(n.op());
        }
        EXPECT_EQ(order[1], "steep.SoftmaxCrossEntropyGrad");
        expect_same_results(g);
      }
    }
  }
}

TEST(ChunkLogits, TakesRowsThatJoinHeads) {
  const Graph g = Vocabulary("mean", false, false, true).g;
  EXPECT_EQ(count(chunked(g), "steep.SoftmaxCrossEntropy"), 2);
  expect_same_results(g);
}

TEST(ChunkLogits, NeedsAFractionOfTheMemory) {
  const Graph g = Vocabulary("mean", true, true).g;
  const auto arena = [&](const std::set<std::string>& disabled) {
    std::vector<Type> types;
    for (Value v : g.inputs()) types.push_back(v.type());
    return Program(g, {.disabled_passes = disabled}).plan(types).arena_bytes;
  };
  constexpr size_t kLogits = size_t{520} * 52000 * 4;
  EXPECT_GT(arena({"chunk_logits"}), kLogits);
  EXPECT_LT(arena({}), kLogits * 6 / 10);
}

TEST(ChunkLogits, LeavesScoresThatOthersRead) {
  Vocabulary read("mean", false, false);
  read.g.add_output("logits", read.logits);
  EXPECT_EQ(count(chunked(read.g), "steep.SoftmaxCrossEntropy"), 1);
}

TEST(ChunkLogits, LeavesAGradientThatOthersRead) {
  Graph g = Vocabulary("mean", false, false).g;
  for (Node n : g.nodes()) {
    if (n.op() != "steep.SoftmaxCrossEntropyGrad") continue;
    const Graph::Scope backward(g, Phase::backward, "steepest");
    g.add_output("steepest", apply("ReduceMax", {n.output(0)}), Phase::backward);
  }
  EXPECT_EQ(count(chunked(g), "steep.SoftmaxCrossEntropy"), 1);
}

TEST(ChunkLogits, LeavesALossWhoseGradientComesLater) {
  Graph g = Vocabulary("mean", false, false).g;
  const Value seed = g.add_input("dloss", {DType::f32, Shape{}}, Phase::backward);
  for (Node n : g.nodes()) {
    if (n.op() == "steep.SoftmaxCrossEntropyGrad") n.set_input(0, seed);
  }
  EXPECT_EQ(count(chunked(g), "steep.SoftmaxCrossEntropy"), 1);
}

/// Two layers that fold a mask of the same values, by way of other values.
Graph equal_masks() {
  Graph g;
  Value y = g.add_input("x", matrix(40, 40));
  for (int i = 0; i < 2; ++i) {
    const Value halves = g.add_constant(Tensor::from(std::vector<float>(1600, 0.5F), {40, 40}));
    y = matmul(y, tanh(exp(halves)) + static_cast<double>(1));
  }
  g.add_output("y", y);
  return g;
}

TEST(Specialise, KeepsEqualFoldedConstantsOnce) {
  const Graph s = specialised(equal_masks(), matrix(40, 40));
  ASSERT_EQ(s.node_count(), 2U) << to_text(s);
  EXPECT_EQ(s.nodes()[0].input(1), s.nodes()[1].input(1));
}

TEST(Compile, KeepsNoConstantThatOnlyFoldingRead) {
  const Type types[] = {matrix(40, 40)};
  const std::optional<Plan> plan = compile(equal_masks(), types, Devices::host_alone(), {});
  ASSERT_TRUE(plan);
  size_t bytes = 0;
  for (uint32_t id = 0; id < plan->graph->value_count(); ++id) {
    const Tensor* t = plan->graph->value(id).tensor();
    bytes += t != nullptr ? t->nbytes() : 0;
  }
  EXPECT_EQ(bytes, 1600 * sizeof(float));
  // Nor the nodes and values that folding replaced: an input, the constant, and two products.
  EXPECT_EQ(plan->graph->node_slots(), 2U);
  EXPECT_EQ(plan->graph->value_count(), 4U);
}

TEST(FuseGatherGrad, AddsIntoTheOtherGradient) {
  Graph g;
  Value table = g.add_input("table", matrix(6, 4)), dy = g.add_input("dy", matrix(3, 4));
  Value picks = g.add_constant(Tensor::from<int64_t>({5, 0, 5}, {3}));
  Value shape = g.add_constant(Tensor::from<int64_t>({6, 4}, {2}));
  Value slices = apply("steep.GatherGrad", {dy, picks, shape}, {{"axis", int64_t{0}}});
  g.add_output("sum", matmul(transpose(table, {1, 0}), table) * 0.0 + 1.0);
  g.add_output("y", tanh(table) + slices);
  const Graph fused = after(g, fuse_gather_grad);
  EXPECT_EQ(count(fused, "Add"), 1) << to_text(fused);  // the one of "sum"
  ASSERT_EQ(count(fused, "steep.GatherGrad"), 1);
  expect_same_results(g);
}

TEST(FuseGatherGrad, KeepsSlicesThatOthersRead) {
  Graph g;
  Value table = g.add_input("table", matrix(6, 4)), dy = g.add_input("dy", matrix(1, 4));
  Value picks = g.add_constant(Tensor::from<int64_t>({2}, {1}));
  Value shape = g.add_constant(Tensor::from<int64_t>({6, 4}, {2}));
  Value slices = apply("steep.GatherGrad", {dy, picks, shape}, {{"axis", int64_t{0}}});
  g.add_output("y", table + slices);
  g.add_output("slices", slices);
  EXPECT_EQ(count(after(g, fuse_gather_grad), "Add"), 1);
  expect_same_results(g);
}

/// y = f(x) forward, and a backward node that reads `kept` and a gradient.
struct TwoPhases {
  Graph g;
  Value dy, dx;

  TwoPhases(Value (*kept)(Value), bool keep_source) {
    Value x = g.add_input("x", matrix(7, 9));
    Value made = matmul(x, transpose(x, {1, 0}));  // not elementwise
    Value saved = kept(made);
    Value y = saved * made;
    g.add_output("y", y);
    dy = g.add_gradient_input("dy", y);
    const Graph::Scope scope(g, Phase::backward, "grad");
    dx = dy * saved;
    if (keep_source) dx = dx * made;
    g.add_output("dx", dx, Phase::backward);
  }
};

int forward_values_read_backward(const Graph& g) {
  std::set<uint32_t> read;
  for (Node n : g.nodes()) {
    if (n.phase() != Phase::backward) continue;
    for (int i = 0; i < n.input_count(); ++i) {
      Node p = n.input(i) ? n.input(i).producer() : Node();
      if (p && p.phase() == Phase::forward) read.insert(n.input(i).id());
    }
  }
  return static_cast<int>(read.size());
}

Value two_steps(Value v) { return tanh(exp(v * 0.1)); }
Value one_bit(Value v) { return where(apply("Greater", {v, v * 0.5}), v, 0.0); }

TEST(Recompute, ReadsTheSourceInstead) {
  TwoPhases two(two_steps, true);
  EXPECT_EQ(forward_values_read_backward(two.g), 2);
  const Graph less = after(two.g, recompute);
  EXPECT_EQ(forward_values_read_backward(less), 1) << to_text(less);
  EXPECT_EQ(count(less, "Tanh"), 2);
}

TEST(Recompute, LeavesWhatWouldKeepAsMuch) {
  TwoPhases two(two_steps, false);
  EXPECT_EQ(count(after(two.g, recompute), "Tanh"), 1);
}

TEST(Recompute, KeepsResults) {
  for (auto kept : {two_steps, one_bit}) {
    TwoPhases two(kept, true);
    std::vector<std::vector<Tensor>> results;
    for (const std::set<std::string>& off : {std::set<std::string>{}, {"recompute"}}) {
      Program program(two.g, {.disabled_passes = off});
      auto forward = program.forward(std::vector{random_tensor({7, 9}, 1)});
      results.push_back(
          program.backward(std::move(forward.pending), std::vector{random_tensor({7, 7}, 2)}));
    }
    for (int64_t i = 0; i < results[0][0].size(); ++i) {
      EXPECT_EQ(results[0][0].data<float>()[i], results[1][0].data<float>()[i]);
    }
  }
}

TEST(Recompute, RepeatsALayerNormalisation) {
  for (const int64_t rows : {8, 512}) {  // 16 KiB, too little to matter, and 1 MiB
    Graph g;
    Value x = g.add_input("x", {DType::f32, Shape{rows / 4, 4, 512}}),
          w = g.add_input("w", matrix(512, 3));
    Value scale = g.add_input("scale", {DType::f32, Shape{512}});
    Value y =
        apply_n("LayerNormalization", std::vector{x, scale, scale}, 3, {{"axis", int64_t{-1}}})[0];
    Value product = matmul(reshape(y, {rows, 512}), w);
    Value loss = sum(product * product, {}, false);
    g.add_output("loss", loss);
    const Value one = scalar(g, 1, DType::f32);
    const std::vector<Value> found =
        add_gradients(g, std::vector{loss}, std::vector{one}, std::vector{x, w, scale});
    for (Value v : found) g.add_output(v.name(), v, Phase::backward);
    EXPECT_EQ(count(after(g, recompute), "LayerNormalization"), rows == 512 ? 2 : 1);
    expect_same_results(g);
  }
}

TEST(FuseElementwise, MakesOneNodeOfAChain) {
  Graph g;
  Value x = g.add_input("x", matrix(6, 50)), row = g.add_input("row", {DType::f32, Shape{50}});
  g.add_output("y", tanh(x * 2.0 + row) * exp(-x));
  const Graph fused = after(g, fuse_elementwise);
  EXPECT_EQ(fused.node_count(), 1U) << to_text(fused);
  expect_same_results(g);
}

TEST(FuseElementwise, TakesOperatorsOfBoolAlone) {
  Graph g;
  Value x = g.add_input("x", matrix(6, 50)), y = g.add_input("y", matrix(6, 50));
  const Value inside = apply("And", {apply("Greater", {x, scalar(g, 0, DType::f32)}),
                                     apply("Less", {x, scalar(g, 0.5, DType::f32)})});
  g.add_output("z", where(apply("Not", {inside}), y, 0.0));
  const Graph fused = after(g, fuse_elementwise);
  EXPECT_EQ(fused.node_count(), 1U) << to_text(fused);
  expect_same_results(g);
}

TEST(FuseElementwise, StoresWhatIsReadLater) {
  Graph g;
  Value x = g.add_input("x", matrix(6, 50));
  Value shared = tanh(x);
  Value y = exp(shared) + 1.0;
  g.add_output("y", matmul(swap_last(y), shared));
  const Graph fused = after(g, fuse_elementwise);
  EXPECT_EQ(count(fused, "steep.Fused"), 1) << to_text(fused);
  EXPECT_EQ(count(fused, "Tanh"), 0);
  expect_same_results(g);
}

TEST(FuseElementwise, NeverMakesACycle) {
  // The last node reads tanh directly and through a product, which cannot be fused.
  Graph g;
  Value x = g.add_input("x", matrix(8, 8));
  Value a = tanh(x);
  g.add_output("y", exp(a) * matmul(a, a));
  expect_same_results(g);
  EXPECT_NO_THROW(after(g, fuse_elementwise).nodes());
}

TEST(FuseElementwise, RandomGraphsKeepTheirResults) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    Graph g;
    std::vector<Value> pool{g.add_input("x", matrix(9, 9)), g.add_input("row", matrix(1, 9)),
                            g.add_input("column", matrix(9, 1))};
    auto pick = [&] { return pool[random() % pool.size()]; };
    for (int i = 0; i < 25; ++i) {
      switch (random() % 7) {
        case 0: pool.push_back(pick() + pick()); break;
        case 1: pool.push_back(tanh(pick())); break;
        case 2: pool.push_back(pick() * pick() * 0.5); break;
        case 3: pool.push_back(where(greater(pick(), pick()), pick(), pick())); break;
        case 4: pool.push_back(transpose(tanh(pick() + pool[0]), {1, 0})); break;
        case 5: pool.push_back(tanh(matmul(pick() + pool[0], pick() + pool[0]))); break;
        default: pool.push_back(sum(tanh(pick()), {1}, true)); break;
      }
    }
    for (int i = 0; i < 3; ++i) g.add_output("out" + std::to_string(i), tanh(pick()));
    SCOPED_TRACE(seed);
    expect_same_results(g);
  }
}

TEST(RemoveDuplicates, ComputesOnce) {
  Graph g;
  Value x = g.add_input("x", matrix(4, 4));
  g.add_output("y", tanh(x * 3.0) + tanh(x * 3.0));
  EXPECT_EQ(after(g, remove_duplicates).node_count(), 3U);
  expect_same_results(g);
}

TEST(RemoveDuplicates, TellsListsOfTextsApart) {
  EXPECT_NE(comparison_key({{"words", Strings{"a,b"}}}),
            comparison_key({{"words", Strings{"a", "b"}}}));
}

TEST(RemoveDuplicates, TellsDropoutsApart) {
  Graph g;
  Value x = g.add_input("x", matrix(4, 4));
  auto dropout = [&](int64_t stream) {
    return apply("steep.Dropout", {x, seed_of(g)}, {{"ratio", 0.5}, {"stream", stream}});
  };
  g.add_output("y", dropout(0) + dropout(1));
  EXPECT_EQ(count(after(g, remove_duplicates), "steep.Dropout"), 2);
}

TEST(Specialise, FoldsShapeArithmetic) {
  Graph g;
  Value x = g.add_input("x", {DType::f32, Shape{Dim::symbol("batch"), 6}});
  Value rows = apply("Gather", {shape_of(x), ints(g, {0})});
  Value shape = apply("Concat", {rows, ints(g, {2, 3})}, {{"axis", int64_t{0}}});
  g.add_output("y", reshape(x, shape));
  const Type type{DType::f32, Shape{4, 6}};
  const Graph concrete = specialised(g, type);
  ASSERT_EQ(concrete.node_count(), 1U) << to_text(concrete);
  EXPECT_EQ(to_string(concrete.outputs()[0].value.type()), "float32[4, 2, 3]");
}

TEST(Specialise, RemovesWhatDoesNothing) {
  Graph g;
  Value x = g.add_input("x", {DType::f32, Shape{Dim::symbol("n"), 3}});
  Value same = apply("steep.SumTo", {apply("Expand", {x, shape_of(x)}), shape_of(x)});
  const Value padded = apply("Pad", {transpose(same * 1.0 - 0.0, {0, 1}), ints(g, {0, 0, 0, 0})});
  g.add_output("y", padded);
  const Type type{DType::f32, Shape{2, 3}};
  EXPECT_EQ(specialised(g, type).node_count(), 0U);
}

TEST(Specialise, KeepsWhatMovesInPlace) {
  Graph g;
  Value x = g.add_input("x", {DType::f32, Shape{2, 3}});
  g.add_output("y", apply("Pad", {x, ints(g, {0, 1, 0, -1})}));  // as wide as before
  EXPECT_EQ(specialised(g, x.type()).node_count(), 1U);
}

TEST(Specialise, KeepsWhatChangesTheSignOfZero) {
  for (const double zero : {0.0, -0.0}) {
    Graph g;
    Value x = g.add_input("x", {DType::f32, Shape{2, 3}});
    g.add_output("sum", x + zero);
    g.add_output("difference", x - zero);
    EXPECT_EQ(specialised(g, x.type()).node_count(), 1U) << zero;
  }
}

TEST(Pipeline, RefusesAnUnknownPassByName) {
  Graph g;
  try {
    run_passes(g, {.disabled = {"fuse_everything"}});
    FAIL() << "an unknown pass was accepted";
  } catch (const ModelError& e) {
    EXPECT_EQ(e.parts().received, "fuse_everything");
  }
}

TEST(Pipeline, TimesEachPassThatRuns) {
  Graph g;
  g.add_output("y", tanh(g.add_input("x", matrix(2, 3))));
  Profiler profiler;
  run_passes(g, {.disabled = {"recompute"}, .profiler = &profiler});
  std::vector<std::string> timed, expected;
  for (const Profiler::Event& e : profiler.events()) {
    timed.push_back(e.node);
    EXPECT_EQ(e.op, "compile");
    EXPECT_GE(e.duration_us, 0);
  }
  for (const Pass& p : passes()) {
    if (p.name == "recompute" || p.elsewhere) continue;
    if (p.at != nullptr && !p.at(Precision::fp32)) continue;
    expected.emplace_back(p.name);
  }
  EXPECT_EQ(timed, expected);
  EXPECT_NE(profiler.to_json().find("fuse_elementwise"), std::string::npos);
}

}  // namespace
}  // namespace steep
