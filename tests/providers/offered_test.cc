// Operators that providers offer: their kernel if there is one, their decomposition elsewhere;
// types and gradients from the provider; invalid offers.
#include "ops/offered.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "autodiff/gradient.h"
#include "custom/offers.h"
#include "device/boundary.h"
#include "errors/refused.h"
#include "program/program.h"
#include "providers/mirror.h"
#include "steep/check.h"
#include "steep/gradient.h"
#include "steep/ops.h"
#include "train/models.h"

namespace steep {
namespace {

using testing::as_span;
using testing::has;
using testing::import_bytes;
using testing::on_mirror;
using testing::random_tensor;

std::string model(const std::string& body, const char* domain = "mirror") {
  return testing::to_bytes(testing::parse_text("<ir_version: 10, opset_import: [\"\" : 18, \"" +
                                               std::string(domain) + "\" : 1]> " + body));
}

ProgramOptions there() {
  const std::vector<ProviderChoice> choices = on_mirror();
  return {.devices = Devices(choices)};
}

ProgramOptions here() { return {.devices = Devices::host_alone()}; }

std::string swish_model() {
  on_mirror();
  return model(R"(g (float[N, 3] x) => (float[N, 3] y)
    { s = mirror.Swish <beta: float = 1.5> (x)  y = Mul (s, s) })");
}

std::string dump(const std::string& bytes, ProgramOptions options, Type type) {
  return Program(import_bytes(bytes).graph, std::move(options)).dump({&type, 1});
}

double swish(double x, double beta) { return x / (1 + std::exp(-beta * x)); }

TEST(Offered, RunsItsKernelOnItsDevice) {
  const std::string bytes = swish_model();
  const Type type{DType::f32, Shape{4, 3}};
  const std::string text = dump(bytes, there(), type);
  EXPECT_TRUE(has(text, "mirror.Swish[mirror]")) << text;
  EXPECT_FALSE(has(text, "to its parts")) << text;
  Program away(import_bytes(bytes).graph, there());
  for (const int64_t rows : {4, 1, 0, 7}) {
    const Tensor x = random_tensor({rows, 3}, 3);
    const Tensor y = away.forward({&x, 1}).outputs[0];
    ASSERT_EQ(y.dims(), (Dims{rows, 3}));
    for (int64_t i = 0; i < y.size(); ++i)
      EXPECT_NEAR(y.data<float>()[i], std::pow(swish(x.data<float>()[i], 1.5), 2), 1e-6);
  }
}

TEST(Offered, IsWrittenUnderItsOwnName) {
  Program away(import_bytes(swish_model()).graph, there());
  const Type type{DType::f32, Shape{4, 3}};
  onnx::ModelProto written;
  ASSERT_TRUE(written.ParseFromString(away.compiled_model({&type, 1})));
  const auto& nodes = written.graph().node();
  EXPECT_TRUE(std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
    return node.domain() == "mirror" && node.op_type() == "Swish";
  }));
  const auto& imports = written.opset_import();
  EXPECT_TRUE(std::any_of(imports.begin(), imports.end(),
                          [](const auto& import) { return import.domain() == "mirror"; }));
}

TEST(Offered, RunsInPartsElsewhereAndThePlanSaysWhy) {
  const std::string bytes = swish_model();
  const std::string text = dump(bytes, here(), {DType::f32, Shape{4, 3}});
  EXPECT_TRUE(has(text, "(mirror.Swish) to its parts: the CPU provider has no kernel")) << text;
  EXPECT_TRUE(has(text, "steep.Fused[")) << text;  // decomposed before fusion
  EXPECT_FALSE(has(text, "mirror.Swish[")) << text;
  const Tensor x = random_tensor({5, 3}, 4);
  const Tensor a = Program(import_bytes(bytes).graph, here()).forward({&x, 1}).outputs[0];
  const Tensor b = Program(import_bytes(bytes).graph, there()).forward({&x, 1}).outputs[0];
  for (int64_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a.data<float>()[i], b.data<float>()[i], 1e-6);
}

TEST(Offered, RunsInPartsWhereTheKernelDeclines) {
  on_mirror();
  const std::string bytes =
      model("g (double[N, 3] x) => (double[N, 3] y) { y = mirror.Swish (x) }");
  const std::string text = dump(bytes, there(), {DType::f64, Shape{2, 3}});
  EXPECT_TRUE(has(text,
                  "Mirror left y (mirror.Swish) to its parts: mirror: an operand or result "
                  "is not float32"))
      << text;
  const Tensor x = Tensor::from<double>({-1, 0, 2}, {1, 3});
  const Tensor y = Program(import_bytes(bytes).graph, there()).forward({&x, 1}).outputs[0];
  EXPECT_NEAR(y.data<double>()[2], swish(2, 1), 1e-12);
}

TEST(Offered, RunsInBodiesOfLoops) {
  on_mirror();
  const std::string bytes = model(R"(g (float[3] x) => (float[3] y) <int64 n = {2}, bool yes = {1}>
    { y = Loop (n, yes, x) <body = b (int64 i, bool c, float[3] v) => (bool more, float[3] w)
        { more = Identity (c)  w = mirror.Swish (v) }> })");
  const Tensor x = Tensor::from<float>({-1, 0.5, 2}, {3});
  const Tensor y = Program(import_bytes(bytes).graph, there()).forward({&x, 1}).outputs[0];
  EXPECT_NEAR(y.data<float>()[2], swish(swish(2, 1), 1), 1e-6);
}

/// The gradient of the sum of the only output with respect to the first input.
Tensor gradient(const std::string& bytes, const Tensor& x, ProgramOptions options) {
  Graph g = import_bytes(bytes).graph;
  const Value y[] = {g.outputs()[0].value}, in[] = {g.inputs()[0]}, none[] = {Value()};
  const Value dx = add_gradients(g, y, none, in, Phase::forward)[0];
  g.set_outputs({});
  g.add_output("dx", dx);
  return Program(std::move(g), std::move(options)).forward({&x, 1}).outputs[0];
}

TEST(Offered, HasTheGradientOfItsFunction) {
  const std::string bytes = swish_model();
  const Tensor x = Tensor::from<float>({-2, -0.5, 0, 0.25, 1, 3}, {2, 3});
  const Tensor a = gradient(bytes, x, here()), b = gradient(bytes, x, there());
  for (int64_t i = 0; i < x.size(); ++i) {
    constexpr double kStep = 1e-5;
    const double at = x.data<float>()[i];
    const double central =
        (std::pow(swish(at + kStep, 1.5), 2) - std::pow(swish(at - kStep, 1.5), 2)) / (2 * kStep);
    EXPECT_NEAR(a.data<float>()[i], central, 1e-5);
    EXPECT_NEAR(b.data<float>()[i], central, 1e-5);
  }
}

TEST(Offered, ModelsOfGradientsAreOfStandardOperators) {
  const std::string bytes = swish_model();
  onnx::ModelProto proto;
  ASSERT_TRUE(proto.ParseFromString(gradient_model(as_span(bytes), {.wrt = {"x"}})));
  for (const auto& node : proto.graph().node()) EXPECT_NE(node.domain(), "mirror");
}

TEST(Offered, TrainsAsOnTheCpu) {
  on_mirror();
  const std::string bytes = model(R"(g (float[rows, 3] x) => (float[rows, 4] logits)
    <float[3, 5] w0 = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6, 0.7, -0.8, 0.9, 0.15, -0.25, 0.35, 0.45,
                       0.55, 0.65},
     float[5, 4] w1 = {0.2, -0.1, 0.4, 0.3, 0.6, -0.5, 0.8, -0.7, 0.15, 0.95, 0.25, -0.35, 0.45,
                       0.5, -0.65, 0.7, 0.1, 0.3, 0.2, -0.4}>
    { h = MatMul (x, w0)  a = mirror.Swish <beta: float = 2.0> (h)  logits = MatMul (a, w1) })");
  const auto losses = [&](std::vector<ProviderChoice> providers) {
    TrainingSession session = testing::session_of(bytes, {.loss = "softmax_cross_entropy",
                                                          .optimizer = {.kind = "adam", .lr = 0.05},
                                                          .providers = std::move(providers)});
    std::vector<double> all;
    for (int i = 0; i < 12; ++i)
      all.push_back(
          session.step({random_tensor({16, 3}, 1), testing::random_labels(16, 4, 1)}).loss);
    return all;
  };
  const auto a = losses({{"CPU"}}), b = losses(on_mirror());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4 * (1 + a[i])) << i;
  EXPECT_LT(a.back(), a.front());
}

TEST(Offered, IsNotTheUsersToRegisterOrTakeBack) {
  on_mirror();
  EXPECT_FALSE(unregister_op("mirror.Swish"));
  const auto listed = registered_ops();
  EXPECT_EQ(std::find(listed.begin(), listed.end(), "mirror.Swish"), listed.end());
  onnx::FunctionProto f;
  f.set_domain("mirror");
  f.set_name("Swish");
  f.add_input("x");
  f.add_output("x");
  f.add_opset_import()->set_version(18);
  const std::string bytes = f.SerializeAsString();
  EXPECT_TRUE(
      has(testing::refused([&] { register_op(as_span(bytes)); }).what, "registered already"));
}

// --- operators of a plug-in of this test

SteepOp offered_as(const char* name, const char* decomposition, const char* gradient = nullptr) {
  SteepOp op{};
  op.size = sizeof(op);
  op.domain = "test";
  op.name = name;
  op.version = op.inputs = op.outputs = 1;
  op.decomposition = decomposition;
  op.decomposition_size = decomposition == nullptr ? 0 : std::strlen(decomposition);
  op.gradient = gradient;
  op.gradient_size = gradient == nullptr ? 0 : std::strlen(gradient);
  return op;
}

std::vector<SteepOp> offers;

void offer(std::vector<SteepOp> ops) {
  offers = std::move(ops);
  Provider p{.table = {}, .name = "Test"};
  p.table.ops = [](size_t* count) -> const SteepOp* {
    *count = offers.size();
    return offers.data();
  };
  take_offers(p);
}

ErrorParts refused_offer(const SteepOp& op) {
  try {
    offer({op});
  } catch (const ProviderError& e) {
    return e.parts();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

#define FUNCTION(text) "<domain: \"test\", opset_import: [\"\" : 18, \"test\" : 1]> " text

TEST(Offers, ThatCannotBeAreRefusedByName) {
  constexpr const char* kFine = FUNCTION("Bad (x) => (y) { y = Neg (x) }");
  const auto refusal = [](const SteepOp& op) {
    const ErrorParts parts = refused_offer(op);
    EXPECT_EQ(parts.node, "Test");
    EXPECT_EQ(find_offered("test.Bad"), nullptr);
    return parts.what + " | " + parts.op + " | " + parts.expected + " | " + parts.received;
  };
  const auto expect = [&](const SteepOp& op, const char* what) {
    const std::string text = refusal(op);
    EXPECT_TRUE(has(text, what) && has(text, "Bad")) << text;
  };
  expect(offered_as("Bad", FUNCTION("Bad (x) => (y) { y = ")), "cannot be parsed");
  expect(offered_as("Bad", "nonsense"), "not a function");
  expect(offered_as("Bad", FUNCTION("Other (x) => (y) { y = Neg (x) }")),
         "the name of another operator");
  expect(offered_as("Bad", FUNCTION("Bad (a, b) => (y) { y = Add (a, b) }")), "the wrong number");
  expect(offered_as("Bad", FUNCTION("Bad (x) => (y) { y = test.Bad (x) }")), "calls itself");
  expect(offered_as("Bad", FUNCTION("Bad (x) => (y) { y = NoSuch (x) }")), "NoSuch");
  expect(offered_as("Bad", FUNCTION("Bad <body: int = 1> (x) => (y) { y = Neg (x) }")), "reserved");
  expect(offered_as("Bad", kFine, FUNCTION("BadGrad (x, dy) => (dx) { dx = Neg (dy) }")),
         "the wrong number");
  expect(offered_as("Bad", kFine, FUNCTION("BadGrad (x, y, dy) => (dx) { dx = test.Bad (dy) }")),
         "calls itself");
  expect(offered_as("Bad", nullptr), "does not define the types");
  SteepOp op = offered_as("Bad", kFine);
  op.version = 0;
  expect(op, "version 0");
  op = offered_as("Bad", kFine);
  op.domain = "ai.onnx";
  EXPECT_TRUE(has(refusal(op), "the name of another operator"));
  op = offered_as("Relu",
                  "<domain: \"\", opset_import: [\"\" : 18]> Relu (x) => (y) { y = Neg (x) }");
  op.domain = "";
  EXPECT_TRUE(has(refusal(op), "reserved"));
  op.name = nullptr;
  EXPECT_TRUE(has(refusal(op), "lacks a name"));
  op = offered_as("Bad", kFine);
  op.size = 8;
  EXPECT_TRUE(has(refusal(op), "1 of 8 bytes"));
  // one of two is invalid: neither is registered
  EXPECT_THROW(offer({offered_as("Good", FUNCTION("Good (x) => (y) { y = Neg (x) }")),
                      offered_as("Bad", "nonsense")}),
               ProviderError);
  EXPECT_EQ(find_offered("test.Good"), nullptr);
}

TEST(Offers, OfANameThatTheUserHasRegisteredAreRefused) {
  onnx::FunctionProto f;
  const char* text = FUNCTION("Mine (x) => (y) { y = Neg (x) }");
  ASSERT_TRUE(onnx::OnnxParser::Parse(f, text).IsOK());
  const std::string bytes = f.SerializeAsString();
  register_op(as_span(bytes));
  EXPECT_TRUE(has(refused_offer(offered_as("Mine", text)).received, "registered already"));
  unregister_op("test.Mine");
}

/// Offers each name once per process, however often its test runs.
void offer_once(const SteepOp& op) {
  if (find_offered(std::string("test.") + op.name) == nullptr) offer({op});
}

TEST(Offers, WithoutAGradientAreDifferentiatedByTheirParts) {
  offer_once(offered_as("Cube", FUNCTION("Cube (x) => (y) { s = Mul (x, x)  y = Mul (s, x) }")));
  const std::string bytes = model("g (float[N] x) => (float[N] y) { y = test.Cube (x) }", "test");
  const Tensor x = Tensor::from<float>({1, 2, -3}, {3});
  const Tensor dx = gradient(bytes, x, here());
  EXPECT_EQ(std::vector<float>(dx.data<float>(), dx.data<float>() + 3),
            (std::vector<float>{3, 12, 27}));
}

TEST(Offers, HaveDefaultsOfTheirAttributesAndKnownOperands) {
  offer_once([] {
    SteepOp op = offered_as("Sum", FUNCTION("Sum <keep: int = 0> (x, axes) => (y) "
                                            "{ y = ReduceSum <keepdims: int = @keep> (x, axes) }"));
    op.inputs = 2;
    return op;
  }());
  const std::string bytes =
      model(R"(g (float[N, 3] x) => (float[N] y, float[N, 1] z) <int64[1] axes = {1}>
        { y = test.Sum (x, axes)  z = test.Sum <keep: int = 1> (x, axes) })",
            "test");
  const Graph g = import_bytes(bytes).graph;
  EXPECT_EQ(to_string(g.outputs()[0].value.type()), "float32[N]");
  EXPECT_EQ(to_string(g.outputs()[1].value.type()), "float32[N, 1]");
  const Tensor x = Tensor::from<float>({1, 2, 3}, {1, 3});
  EXPECT_EQ(Program(import_bytes(bytes).graph, here()).forward({&x, 1}).outputs[0].data<float>()[0],
            6);
}

/// A type with twice as many columns and the same rows.
SteepError* twice_as_wide(SteepNode* node) {
  SteepOperand x{};
  x.size = sizeof(x);
  host_table().input(node, 0, &x);
  const int64_t dims[] = {x.dims[0], x.dims[1] < 0 ? -1 : 2 * x.dims[1]};
  return host_table().set_output(node, 0, x.dtype, 2, dims);
}

SteepOp twice() {
  static SteepAttr attributes[2] = {};
  for (SteepAttr& a : attributes) a.size = sizeof(a);
  attributes[0].name = "how";
  attributes[1].name = "much";
  attributes[1].kind = STEEP_ATTR_REAL;
  attributes[1].real = 2.5;
  SteepOp op = offered_as("Twice", nullptr);
  op.infer = twice_as_wide;
  op.attributes = attributes;
  op.attribute_count = 2;
  op.version = 2;
  return op;
}

TEST(Offers, TellTypesBeforeExtentsAreKnown) {
  offer_once(twice());
  const std::string text = R"(<ir_version: 10, opset_import: ["" : 18, "test" : 2]>
    g (float[N, 3] x, float[N, M] z) => (float[N, 6] y, float[N, K] w)
    { y = test.Twice <how: int = 1> (x)  w = test.Twice <how: int = 1> (z) })";
  const Graph g = import_bytes(testing::to_bytes(testing::parse_text(text))).graph;
  EXPECT_EQ(to_string(g.outputs()[0].value.type()), "float32[N, 6]");
  EXPECT_EQ(to_string(g.outputs()[1].value.type()), "float32[N, ?]");
  EXPECT_EQ(g.nodes()[0].attrs().real("much"), 2.5);
}

TEST(Offers, WithoutPartsAreObstaclesWhereNobodyRunsThem) {
  offer_once(twice());
  const std::string bytes = testing::to_bytes(testing::parse_text(
      R"(<ir_version: 10, opset_import: ["" : 18, "test" : 2, "mirror" : 1]>
        g (float[N, 3] x) => (float[N, 2] y)
        <float[6, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>
        { s = mirror.Swish (x)  t = test.Twice <how: int = 1> (s)  y = MatMul (t, w) })"));
  for (const auto& [providers, who] :
       {std::pair{std::vector<ProviderChoice>{}, "The CPU has no kernel"},
        std::pair{testing::on_mirror(), "No provider that was named"}}) {
    const CheckReport report = check_model(as_span(bytes), {.providers = providers});
    ASSERT_EQ(report.obstacles.size(), 1U);
    EXPECT_EQ(report.obstacles[0].op, "test.Twice");
    EXPECT_TRUE(has(report.obstacles[0].what, who)) << report.obstacles[0].what;
  }
}

TEST(Offers, WithoutPartsNeedAKernel) {
  offer_once(twice());
  const std::string bytes = testing::to_bytes(testing::parse_text(
      R"(<ir_version: 10, opset_import: ["" : 18, "test" : 2]> g (float[N, 3] x) => (float[N, 6] y)
        { y = test.Twice <how: int = 1> (x) })"));
  const Tensor x = random_tensor({2, 3}, 1);
  for (const auto& options : {here(), there()}) {
    try {
      Program(import_bytes(bytes).graph, options).forward({&x, 1});
      ADD_FAILURE() << "it ran";
    } catch (const ProviderError& e) {
      EXPECT_EQ(e.parts().op, "test.Twice");
    }
  }
  const ErrorParts parts = testing::refused([&] { gradient(bytes, x, here()); });
  EXPECT_TRUE(has(parts.what, "no gradient")) << parts.what;
  EXPECT_EQ(parts.op, "test.Twice");
}

TEST(Offers, AreCalledAsTheyAreDeclared) {
  offer_once(twice());
  const auto imported = [](const std::string& call, const char* version = "2") {
    return testing::refused([&] {
      import_bytes(testing::to_bytes(testing::parse_text(
          "<ir_version: 10, opset_import: [\"\" : 18, \"test\" : " + std::string(version) +
          "]> g (float[N, 3] x) => (float[N, 6] y) { y = test.Twice " + call + " }")));
    });
  };
  EXPECT_EQ(imported("(x)").expected, "how");  // it has no default
  EXPECT_EQ(imported("<how: int = 1, why: int = 2> (x)").received, "why");
  EXPECT_TRUE(has(imported("<how: int = 1> (x, x)").what, "too many inputs"));
  EXPECT_TRUE(has(imported("<how: int = 1> (x)", "1").what, "version of the domain"));
}

ErrorParts wrong_types(const char* name, SteepError* (*infer)(SteepNode*)) {
  const std::string text = FUNCTION("") + std::string(name) + " (x) => (y) { y = Neg (x) }";
  SteepOp op = offered_as(name, text.c_str());
  op.infer = infer;
  offer_once(op);
  try {
    import_bytes(model(
        "g (float[N, 3] x) => (float[N, 3] y) { y = test." + std::string(name) + " (x) }", "test"));
  } catch (const ProviderError& e) {
    EXPECT_EQ(e.parts().op, std::string("test.") + name);
    return e.parts();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

TEST(Offers, WhoseTypesAreWrongAreRefusedWhereTheyAreCalled) {
  EXPECT_TRUE(has(wrong_types("WrongRank",
                              [](SteepNode* n) {
                                const int64_t dims[] = {3};
                                return host_table().set_output(n, 0, 1, 1, dims);
                              })
                      .received,
                  "float32[3]"));
  EXPECT_TRUE(has(wrong_types("WrongDtype",
                              [](SteepNode* n) {
                                const int64_t dims[] = {-1, 3};
                                return host_table().set_output(n, 0, 7, 2, dims);
                              })
                      .what,
                  "different types"));
  EXPECT_TRUE(
      has(wrong_types("NoDtype",
                      [](SteepNode* n) { return host_table().set_output(n, 0, 999, 0, nullptr); })
              .what,
          "dtype"));
  EXPECT_TRUE(has(wrong_types("NoSymbol",
                              [](SteepNode* n) {
                                const int64_t dims[] = {-9, 3};
                                return host_table().set_output(n, 0, 1, 2, dims);
                              })
                      .what,
                  "extent"));
  EXPECT_TRUE(
      has(wrong_types("NoOutput",
                      [](SteepNode* n) { return host_table().set_output(n, 1, 1, 0, nullptr); })
              .what,
          "does not exist"));
  EXPECT_TRUE(has(wrong_types("Silent", [](SteepNode*) -> SteepError* { return nullptr; }).what,
                  "does not give the type"));
  EXPECT_TRUE(has(wrong_types("Complains",
                              [](SteepNode*) {
                                SteepErrorText text{};
                                text.size = sizeof(text);
                                text.what = "Not like this.";
                                return host_table().error(STEEP_PROVIDER, &text);
                              })
                      .what,
                  "Not like this"));
  // and everything else works as before
  const Tensor x = random_tensor({2, 3}, 1);
  EXPECT_EQ(Program(import_bytes(swish_model()).graph, there()).forward({&x, 1}).outputs.size(),
            1U);
}

TEST(Offers, ThatDrawNumbersAreRefused) {
  offer_once(offered_as("Noise", FUNCTION("Noise (x) => (y) { y = RandomUniformLike (x) }")));
  EXPECT_THROW(import_bytes(model("g (float[3] x) => (float[3] y) { y = test.Noise (x) }", "test")),
               ProviderError);
}

}  // namespace
}  // namespace steep
