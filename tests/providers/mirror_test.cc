// Graphs on a device with memory that the host cannot access, and with asynchronous execution:
// results equal those of the CPU, values are copied between devices, and errors are reported at the
// right place.
#include "providers/mirror.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <map>
#include <random>

#include "autodiff/gradient.h"
#include "device/boundary.h"
#include "ops/build.h"
#include "program/program.h"
#include "steep/error.h"
#include "steep/inference.h"
#include "train/models.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

using testing::on_mirror;

ProgramOptions there() {
  const std::vector<ProviderChoice> choices = on_mirror();
  return {.devices = Devices(choices)};
}

Tensor numbers(Dims dims, uint32_t seed) {
  Tensor t = Tensor::empty(DType::f32, std::move(dims));
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < t.size(); ++i) t.data<float>()[i] = normal(engine);
  return t;
}

void expect_close(const Tensor& a, const Tensor& b, double tolerance = 1e-5) {
  ASSERT_EQ(a.dims(), b.dims());
  for (int64_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a.data<float>()[i], b.data<float>()[i],
                tolerance * (1 + std::abs(b.data<float>()[i])));
}

/// x → softmax(tanh(x w + b)), with the gradients of x and w.
Graph network() {
  Graph g;
  const Value x = g.add_input("x", {DType::f32, Shape{Dim::symbol("rows"), 8}});
  const Value w = g.add_constant(numbers({8, 5}, 1), "w");
  const Value b = g.add_constant(numbers({5}, 2), "b");
  const Value y = apply("Softmax", {tanh(matmul(x, w) + b)}, {{"axis", int64_t{-1}}});
  g.add_output("y", y);
  const Value dy = g.add_gradient_input("dy", y);
  g.add_output("dx", add_gradients(g, std::vector{y}, std::vector{dy}, std::vector{x})[0],
               Phase::backward);
  return g;
}

TEST(Mirror, GivesTheResultsOfTheCpu) {
  Program here(network(), {.devices = Devices::host_alone()}), away(network(), there());
  for (const int64_t rows : {3, 7, 3, 1, 0}) {
    const Tensor x = numbers({rows, 8}, static_cast<uint32_t>(rows)), dy = numbers({rows, 5}, 9);
    ForwardResult a = here.forward({&x, 1}), b = away.forward({&x, 1});
    expect_close(a.outputs[0], b.outputs[0]);
    const auto da = here.backward(std::move(a.pending), {&dy, 1});
    const auto db = away.backward(std::move(b.pending), {&dy, 1});
    expect_close(da[0], db[0]);
  }
}

TEST(Mirror, RunsWaitForEachOther) {
  Program here(network(), {.devices = Devices::host_alone()}), away(network(), there());
  const Tensor x1 = numbers({4, 8}, 1), x2 = numbers({4, 8}, 2), dy = numbers({4, 5}, 3);
  ForwardResult a1 = away.forward({&x1, 1}), a2 = away.forward({&x2, 1});
  ForwardResult b1 = here.forward({&x1, 1}), b2 = here.forward({&x2, 1});
  expect_close(away.backward(std::move(a2.pending), {&dy, 1})[0],
               here.backward(std::move(b2.pending), {&dy, 1})[0]);
  expect_close(away.backward(std::move(a1.pending), {&dy, 1})[0],
               here.backward(std::move(b1.pending), {&dy, 1})[0]);
}

TEST(Mirror, ThePlanSaysWhatCrossesAndWhatWasDeclined) {
  Graph g;
  const Value x = g.add_input("x", {DType::f32, Shape{6, 4}});
  const Value order = apply("CumSum", {tanh(x), ints(g, {0})});  // Mirror has no kernel for it
  g.add_output("y", exp(order));
  Program program(std::move(g), there());
  const Type type{DType::f32, Shape{6, 4}};
  const std::string text = program.dump({&type, 1});
  EXPECT_NE(text.find("Mirror left"), std::string::npos) << text;
  EXPECT_NE(text.find("(CumSum) to the host"), std::string::npos) << text;
  // to the device: x and the sums; to the host: tanh(x) and the result; 96 bytes each
  EXPECT_NE(text.find("192 bytes there and 192 back"), std::string::npos) << text;
  const Tensor fed = numbers({6, 4}, 5);
  const Tensor y = program.forward({&fed, 1}).outputs[0];
  float sum = 0;
  for (int64_t i = 0; i < 6; ++i) {
    sum += std::tanh(fed.data<float>()[4 * i]);
    EXPECT_NEAR(y.data<float>()[4 * i], std::exp(sum), 1e-4);
  }
}

TEST(Mirror, ConstantsCrossOnce) {
  Program program(network(), there());
  const Type type{DType::f32, Shape{3, 8}};
  const std::string text = program.dump({&type, 1});
  EXPECT_NE(text.find("Mirror:constant"), std::string::npos) << text;
  // only x is copied in forward, and dy in backward
  EXPECT_NE(text.find("156 bytes there"), std::string::npos) << text;
}

TEST(Mirror, WhatFailsThereIsTheCallersError) {
  Graph g;
  const Value x = g.add_input("x", {DType::f32, Shape{4, 3}});
  const Value i = g.add_input("i", {DType::i64, Shape{2}});
  g.add_output("y", apply("Gather", {x, i}, {{"axis", int64_t{0}}}));
  Program program(std::move(g), there());
  const std::vector<Tensor> bad{numbers({4, 3}, 1), Tensor::from<int64_t>({1, 4}, {2})};
  EXPECT_THROW(program.forward(bad), DataError);
  const std::vector<Tensor> good{numbers({4, 3}, 1), Tensor::from<int64_t>({-1, 0}, {2})};
  const Tensor y = program.forward(good).outputs[0];  // the next run works as usual
  EXPECT_EQ(y.data<float>()[0], good[0].data<float>()[9]);
}

TEST(Mirror, ChecksForNumbersThatAreNone) {
  Graph g;
  const Value x = g.add_input("x", {DType::f32, Shape{2}});
  g.add_output("y", tanh(log(x)));
  ProgramOptions options = there();
  options.check_finite = true;
  options.disabled_passes = {"fuse_elementwise"};
  Program program(std::move(g), options);
  const Tensor bad = Tensor::from<float>({1, -1}, {2});
  try {
    program.forward({&bad, 1});
    FAIL() << "nothing was found";
  } catch (const DataError& e) {
    EXPECT_EQ(e.parts().op, "Log");
  }
}

TEST(Mirror, MemoryIsTypedWhenItEnds) {
  on_mirror();
  const std::vector<ProviderChoice> small{{"Mirror", {{"memory_mb", "1"}}}};
  Graph g;
  const Value x = g.add_input("x", {DType::f32, Shape{1024, 1024}});
  g.add_output("y", tanh(matmul(x, x)));
  Program program(std::move(g), {.devices = Devices(small)});
  const Tensor fed = Tensor::zeros(DType::f32, {1024, 1024});
  EXPECT_THROW(program.forward({&fed, 1}), OutOfMemoryError);
}

TEST(MirrorDeathTest, TheHostCannotTouchItsMemory) {
  const std::vector<ProviderChoice> choices = on_mirror();
  const Devices devices(choices);
  const auto memory = devices.others()[0]->allocate(64);
  EXPECT_DEATH(static_cast<volatile char*>(memory.get())[0] = 1, "");
}

TEST(Mirror, AForkedChildIsRefused) {
  Program program(network(), there());
  const Tensor x = numbers({2, 8}, 1);
  program.forward({&x, 1});
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      program.forward({&x, 1});
    } catch (const ProviderError& e) {
      code = std::string(e.what()).find("spawn") != std::string::npos ? 0 : 2;
    }
    _exit(code);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  program.forward({&x, 1});
}

/// y = norm(a + b) w, where a + b is a graph output, too.
Graph normalised() {
  Graph g;
  const Type type{DType::f32, Shape{6, 8}};
  const Value a = g.add_input("a", type), b = g.add_input("b", type);
  const Value sum = a + b;
  const auto norm =
      apply_n("LayerNormalization",
              std::vector{sum, g.add_constant(numbers({8}, 1)), g.add_constant(numbers({8}, 2))}, 3,
              {{"axis", int64_t{-1}}});
  g.add_output("y", matmul(norm[0], g.add_constant(numbers({8, 4}, 3))));
  g.add_output("sum", sum);
  return g;
}

TEST(Mirror, WhatADeviceClaimsIsOneNode) {
  Program here(normalised(), {.devices = Devices::host_alone()}), away(normalised(), there());
  const std::vector<Tensor> fed{numbers({6, 8}, 4), numbers({6, 8}, 5)};
  const Type type{DType::f32, Shape{6, 8}};
  const std::string text = away.dump(std::vector{type, type});
  EXPECT_NE(text.find("steep.Claimed[mirror]"), std::string::npos) << text;
  EXPECT_EQ(text.find("= LayerNormalization["), std::string::npos) << text;
  const auto a = here.forward(fed).outputs, b = away.forward(fed).outputs;
  for (size_t i = 0; i < a.size(); ++i) expect_close(b[i], a[i]);

  ProgramOptions options = there();
  options.disabled_passes = {"claim"};
  EXPECT_EQ(Program(normalised(), options).dump(std::vector{type, type}).find("Claimed"),
            std::string::npos);
}

TEST(Mirror, WhatItDoesNotNarrowIsFloat32) {
  const auto text = [](ProgramOptions options) {
    options.precision = Precision::bf16;
    const Type type{DType::f32, Shape{6, 8}};
    return Program(normalised(), options).dump(std::vector{type, type});
  };
  EXPECT_NE(text({.devices = Devices::host_alone()}).find("bfloat16"), std::string::npos);
  EXPECT_EQ(text(there()).find("bfloat16"), std::string::npos);
}

TEST(Boundary, AttributesThatANodeLeavesOutHaveTheirDefaults) {
  const Attrs attrs{{"epsilon", 0.25}};
  const NodeSpec spec{
      .name = "n", .op = "LayerNormalization", .attrs = attrs, .inputs = {}, .outputs = {}};
  const NodeView view(spec);
  const SteepHost& host = host_table();
  std::map<std::string, double> seen;
  for (int i = 0; i < host.attr_count(view.get()); ++i) {
    SteepAttr a{};
    a.size = sizeof(a);
    host.attr(view.get(), i, &a);
    seen[a.name] = a.kind == STEEP_ATTR_INT ? static_cast<double>(a.integer) : a.real;
  }
  EXPECT_EQ(seen,
            (std::map<std::string, double>{{"axis", -1}, {"epsilon", 0.25}, {"stash_type", 1}}));
}

TEST(Boundary, ABodyCrossesOnceForAllCandidates) {
  const auto body = std::make_shared<Graph>();
  body->add_output("y", apply("Relu", {body->add_input("x", {DType::f32, Shape{2}})}));
  const Attrs attrs{{"body", Body(body)}};
  const NodeSpec spec{
      .name = "n", .op = "steep.Fused", .attrs = attrs, .inputs = {}, .outputs = {}};
  const NodeView view(spec);
  const auto crossed = [&] {
    SteepAttr a{};
    a.size = sizeof(a);
    host_table().attr(view.get(), 0, &a);
    return a.body;
  };
  const SteepGraph* first = crossed();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(host_table().node_count(first), 1);
  EXPECT_EQ(crossed(), first);
}

// --- wrong claims: a device of this test, which claims the operators in `wanted`

std::vector<std::string> wanted;  // operators, one node of each

SteepError* claim_wanted(void*, SteepGraph* graph) {
  const SteepHost& host = host_table();
  std::vector<const SteepNode*> nodes;
  for (const std::string& op : wanted) {
    for (int i = 0; i < host.node_count(graph); ++i) {
      if (host.op(host.node(graph, i)) == op) nodes.push_back(host.node(graph, i));
    }
  }
  return host.claim(graph, nodes.data(), nodes.size(), "test.Claim");
}

const SteepCandidate* none(void*, const char*, size_t* count) {
  *count = 0;
  return nullptr;
}

Tensor run_claiming(std::vector<std::string> ops) {
  static const Provider provider = [] {
    Provider p{.table = {}, .name = "test"};
    p.table.candidates = none;
    p.table.fuse = claim_wanted;
    p.table.stream = [](void*, SteepStream*) -> SteepError* { return nullptr; };
    p.table.sync = [](void*, SteepStream) -> SteepError* { return nullptr; };
    p.table.allocate = [](void*, SteepMemory, size_t, void**) -> SteepError* { return nullptr; };
    return p;
  }();
  wanted = std::move(ops);
  Graph g;
  const Value x = g.add_input("x", {DType::f32, Shape{2, 2}});
  g.add_output("y", exp(matmul(tanh(x), x)));
  Program program(std::move(g),
                  {.disabled_passes = {"fuse_elementwise"},
                   .devices = Devices(std::vector{Device::open(provider, 0, {}), host_device()})});
  const Tensor fed = Tensor::from<float>({1, 2, 3, 4}, {2, 2});
  return program.forward({&fed, 1}).outputs[0];
}

TEST(Claims, OfWhatNoKernelTakesAreTheirNodesAgain) {
  const double t = std::tanh(1.0), u = std::tanh(2.0);
  EXPECT_NEAR(run_claiming({"Tanh", "MatMul"}).data<float>()[0], std::exp(t + 3 * u), 1e-3);
}

TEST(Claims, ThatCannotBeOneNodeAreRefused) {
  EXPECT_THROW(run_claiming({}), ProviderError);                // an empty claim
  EXPECT_THROW(run_claiming({"Tanh", "Tanh"}), ProviderError);  // a node twice
  EXPECT_THROW(run_claiming({"Tanh", "Exp"}), ProviderError);  // a node between the two is left out
}

// --- training

std::vector<double> losses(TrainingSession& session, int steps) {
  std::vector<double> all;
  for (int i = 0; i < steps; ++i) {
    const auto seed = static_cast<unsigned>(i);
    all.push_back(
        session.step({testing::random_tensor({16, 3}, seed), testing::random_labels(16, 4, seed)})
            .loss);
  }
  return all;
}

class MirrorTraining : public testing::TempFolder,
                       public ::testing::WithParamInterface<const char*> {
 protected:
  static TrainingSession session(std::vector<ProviderChoice> providers) {
    return testing::session_of(testing::mlp_bytes(true),
                               {.loss = "softmax_cross_entropy",
                                .optimizer = {.kind = GetParam(), .lr = 0.05},
                                .clip_norm = 1,
                                .providers = std::move(providers)});
  }
};

TEST_P(MirrorTraining, LearnsAsOnTheCpuAndResumesThere) {
  TrainingSession here = session({{"CPU"}}), away = session(on_mirror());
  const auto a = losses(here, 12), b = losses(away, 12);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4 * (1 + a[i])) << i;
  const auto wa = here.weights(), wb = away.weights();
  for (const auto& [name, w] : wa) expect_close(wb.at(name), w, 1e-3);

  away.save_checkpoint(folder() / "checkpoint");
  TrainingSession other = session(on_mirror());
  other.load_checkpoint(folder() / "checkpoint");
  EXPECT_EQ(losses(away, 3), losses(other, 3));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, MirrorTraining,
                         ::testing::Values("sgd", "adam", "adamw", "lamb"));

}  // namespace
}  // namespace steep
