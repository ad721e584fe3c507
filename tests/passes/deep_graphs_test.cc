// Deep and wide graphs with many nodes: the cost of any stage per node must not depend on the
// number of nodes or on the number of paths. Each of these cases once took minutes, or did not end.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cmath>
#include <random>

#include "autodiff/gradient.h"
#include "autodiff/recognise.h"
#include "model/onnx_text.h"
#include "ops/build.h"
#include "passes/pipeline.h"
#include "plan/plan.h"
#include "program/program.h"
#include "steep/steep.h"

namespace steep {
namespace {

const Type kPair{DType::f32, Shape{2}};  // Clang 14 makes a Shape{2} in a template two extents

/// The graph of f(x) and of the gradient of its sum; `step` makes each value from the previous one.
template <typename Step>
Graph chain(int length, const Step& step) {
  Graph g;
  const Value x = g.add_input("x", kPair);
  Value v = x;
  for (int i = 0; i < length; ++i) v = step(v);
  const Value outputs[] = {sum(v, {0}, false)}, sources[] = {x};
  g.add_output("y", outputs[0]);
  g.add_output("dx", add_gradients(g, outputs, {}, sources)[0], Phase::backward);
  return g;
}

/// y and dx at (a, a).
std::pair<float, float> run(Graph g, float a) {
  Program program(std::move(g));
  const Tensor inputs[] = {Tensor::from(std::vector<float>{a, a}, {2})};
  ForwardResult forward = program.forward(inputs);
  const float y = forward.outputs[0].data<float>()[0];
  const std::vector<Tensor> dx = program.backward(std::move(forward.pending), {});
  return {y, dx[0].data<float>()[0]};
}

TEST(DeepGraphs, ManyWaysThroughFewNodes) {
  // 2^64 paths: v ↦ v · v. The gradient of 1^(2^64) is 2^64.
  const auto [y, dx] = run(chain(64, [](Value v) { return v * v; }), 1);
  EXPECT_EQ(y, 2);
  EXPECT_EQ(dx, std::ldexp(1.0F, 64));

  const auto of_tanh = run(chain(200, [](Value v) { return v + apply("Tanh", {v}); }), 0);
  EXPECT_EQ(of_tanh.first, 0);
  EXPECT_TRUE(std::isinf(of_tanh.second));  // 2^200
}

TEST(DeepGraphs, Chains) {
  for (const char* op : {"Relu", "Tanh", "Softmax", "Mish"}) {
    const auto [y, dx] = run(chain(2000, [&](Value v) { return apply(op, {v}); }), 0.5F);
    EXPECT_TRUE(std::isfinite(y) && std::isfinite(dx)) << op;
  }
}

TEST(DeepGraphs, NoRecursionOverNodes) {
  // 100,000 frames of any recursion would overflow the stack.
  Graph g;
  Value v = g.add_input("x", kPair);
  const Value x = v;
  for (int i = 0; i < 50'000; ++i) {
    const Value t = g.add_node(i % 2 == 0 ? "Tanh" : "Exp", std::span(&v, 1), 1).output(0);
    g.set_type(t, x.type());
    v = t;
  }
  g.add_output("y", v);
  {
    const Graph::Scope scope(g, Phase::backward, "");
    const Value last = g.add_node("Neg", std::span(&v, 1), 1).output(0);
    g.set_type(last, x.type());
    const Value read[] = {last, v};
    const Value dx = g.add_node("Mul", read, 1).output(0);
    g.set_type(dx, x.type());
    g.add_output("dx", dx, Phase::backward);
  }
  recognise(g);
  run_passes(g, {});
  EXPECT_GE(g.node_count(), size_t{1000});
}

TEST(DeepGraphs, AnyNumberOfOperands) {
  constexpr int kOperands = 2000;
  for (const char* op : {"Sum", "Mean", "Max", "Min"}) {
    Graph g;
    std::vector<Value> operands;
    std::vector<Tensor> inputs;
    for (int i = 0; i < kOperands; ++i) {
      operands.push_back(g.add_input("x", kPair));
      inputs.push_back(Tensor::from(std::vector<float>{static_cast<float>(i), 1}, {2}));
    }
    const Value y = steep::apply(op, operands);
    const Value outputs[] = {sum(y, {0}, false)}, sources[] = {operands[0], operands.back()};
    g.add_output("y", y);
    const auto gradients = add_gradients(g, outputs, {}, sources, Phase::forward);
    g.add_output("first", gradients[0]);
    g.add_output("last", gradients[1]);
    const std::vector<Tensor> result = evaluate(g, inputs);
    constexpr float kSum = kOperands * (kOperands - 1) / 2.0F;
    const std::string name = op;
    const float expected = name == "Sum"    ? kSum
                           : name == "Mean" ? kSum / kOperands
                           : name == "Max"  ? kOperands - 1
                                            : 0;
    EXPECT_NEAR(result[0].data<float>()[0], expected, 1e-4 * kSum) << op;
    EXPECT_EQ(result[2].data<float>()[0], name == "Max"   ? 1.0F
                                          : name == "Min" ? 0.0F
                                          : name == "Sum" ? 1.0F
                                                          : 1.0F / kOperands)
        << op;
  }
}

TEST(DeepGraphs, ManyParts) {
  constexpr int kParts = 3000;  // more elements than shape inference reads of most constants
  Graph g;
  std::vector<Value> parts;
  std::vector<Tensor> inputs;
  for (int i = 0; i < kParts; ++i) {
    parts.push_back(g.add_input("x", {DType::f32, Shape{Dim::symbol("n"), 2}}));
    inputs.push_back(Tensor::from(std::vector<float>{static_cast<float>(i), 1}, {1, 2}));
  }
  const Value y = concat(parts, 0);
  const Value outputs[] = {sum(y * y, {0, 1}, false)};
  g.add_output("y", outputs[0]);
  g.add_output("dx", add_gradients(g, outputs, {}, std::span(&parts[2000], 1), Phase::forward)[0]);
  const std::vector<Tensor> result = evaluate(g, inputs);
  EXPECT_EQ(result[1].data<float>()[0], 4000);
}

TEST(DeepGraphs, ReplacingLooksAtReadersAlone) {
  constexpr int kCount = 100'000;
  Graph g;
  const Value x = g.add_input("x", kPair);
  std::vector<Value> made;
  for (int i = 0; i < kCount; ++i) {
    made.push_back(g.add_node("Relu", std::span(&x, 1), 1).output(0));
    g.add_output("y", made.back());
  }
  for (int i = 0; i < kCount; ++i) {
    EXPECT_TRUE(g.is_output(made[static_cast<size_t>(i)]));
    g.replace_uses(made[static_cast<size_t>(i)], x);
  }
  for (const Output& o : g.outputs()) EXPECT_EQ(o.value, x);
  EXPECT_EQ(g.prune(), static_cast<size_t>(kCount));
}

/// Lowest offsets by the definition: past the end of every buffer that lives at the same time.
size_t place_one_by_one(std::vector<Buffer>& buffers) {
  std::vector<Buffer*> by_size;
  for (Buffer& b : buffers) by_size.push_back(&b);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const Buffer* a, const Buffer* b) { return a->bytes > b->bytes; });
  auto end_of = [](const Buffer& b) {
    const size_t end = b.offset + b.bytes + (b.bytes >= 65536 ? 4096 + 5 * 64 : 0);
    return (end + 63) / 64 * 64;
  };
  size_t arena = 0;
  for (size_t i = 0; i < by_size.size(); ++i) {
    Buffer& b = *by_size[i];
    b.offset = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t j = 0; j < i; ++j) {
        const Buffer& o = *by_size[j];
        if (o.last < b.first || b.last < o.first) continue;
        if (b.offset >= end_of(o) || b.offset + b.bytes <= o.offset) continue;
        b.offset = end_of(o);
        moved = true;
      }
    }
    arena = std::max(arena, b.offset + b.bytes);
  }
  return (arena + 63) / 64 * 64;
}

TEST(DeepGraphs, BuffersLieAtTheLowestOffset) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<Buffer> buffers;
    for (int i = 0; i < 60; ++i) {
      Buffer b{.bytes = random() % 4 * (random() % 2 == 0 ? 40'000 : 100)};
      b.first = static_cast<int>(random() % 40);
      b.last = b.first + static_cast<int>(random() % (round % 2 == 0 ? 4 : 40));
      if (random() % 20 == 0) b.first = INT32_MAX, b.last = -1;
      buffers.push_back(b);
    }
    std::vector<Buffer> expected = buffers;
    EXPECT_EQ(place_buffers(buffers), place_one_by_one(expected));
    for (size_t i = 0; i < buffers.size(); ++i) EXPECT_EQ(buffers[i].offset, expected[i].offset);
  }
}

TEST(DeepGraphs, BuffersThatAllLiveAtOnce) {
  constexpr int kCount = 100'000;
  std::vector<Buffer> buffers;
  for (int i = 0; i < kCount; ++i) {
    buffers.push_back({.bytes = 64, .first = i, .last = 2 * kCount - i});
  }
  EXPECT_EQ(place_buffers(buffers), size_t{64} * kCount);
}

/// Branches in branches, and functions that call functions, as deep as the limits allow.
std::string nested_model() {
  constexpr int kDepth = 98;
  std::string text = R"(<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
    g (float[rows, 2] x, bool c) => (float[rows, 2] y) <float[2, 2] w = {1, 2, 3, 4}> {
      called = own.f98(x)
      y = MatMul(called, w)
    })";
  const char* head = R"(<opset_import: ["" : 18, "own" : 1], domain: "own">)";
  text += std::string(head) + "f0 (a) => (b) { b = Tanh(a) }";
  for (int i = 1; i <= kDepth; ++i)
    text += fmt::format("{} f{} (a) => (b) {{ b = own.f{}(a) }}", head, i, i - 1);
  onnx::ModelProto model = testing::parse_text(text);
  onnx::NodeProto* node = model.mutable_graph()->mutable_node(1);  // of the innermost branch
  for (int i = 0; i < kDepth; ++i) {
    const onnx::NodeProto inner = *node;
    node->Clear();
    node->set_op_type("If");
    node->add_input("c");
    node->add_output(fmt::format("y{}", i));
    for (const char* branch : {"then_branch", "else_branch"}) {
      onnx::AttributeProto* attribute = node->add_attribute();
      attribute->set_name(branch);
      attribute->set_type(onnx::AttributeProto::GRAPH);
      onnx::GraphProto* graph = attribute->mutable_g();
      graph->set_name(fmt::format("{} {}", branch, i));
      onnx::NodeProto* own = graph->add_node();
      if (branch[0] == 't') {
        *own = inner;
      } else {
        own->set_op_type("MatMul");
        own->add_input("called");
        own->add_input("w");
        own->add_output("");
      }
      own->set_output(0, fmt::format("{} {}", branch, i));
      onnx::ValueInfoProto* output = graph->add_output();
      output->set_name(own->output(0));
      output->mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
    }
  }
  node->set_output(0, "y");
  return testing::to_bytes(model);
}

/// What steep_c.h promises: threads of other languages and hosts have small stacks.
TEST(DeepGraphs, TheDeepestModelFitsAStackOfOneMebibyte) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more";
#elif defined(__has_feature)
  GTEST_SKIP() << "Clang builds with sanitizers only";
#endif
  const auto train = [](void* result) -> void* {
    const std::string bytes = nested_model();
    TrainingSession session(testing::as_span(bytes), {.loss = "mse"});
    const Tensor inputs[] = {Tensor::from<float>({1, 2}, {1, 2}), Tensor::scalar<bool>(true),
                             Tensor::from<float>({0, 0}, {1, 2})};
    *static_cast<double*>(result) = session.step(inputs).loss;
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, size_t{1} << 20);
  pthread_t thread{};
  double loss = 0;
  ASSERT_EQ(pthread_create(&thread, &attributes, train, &loss), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  EXPECT_GT(loss, 0);
}

}  // namespace
}  // namespace steep
