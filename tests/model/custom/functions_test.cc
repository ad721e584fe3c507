// User-defined operators: registration, and their use in models.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "autodiff/gradient.h"
#include "errors/refused.h"
#include "model/onnx_text.h"
#include "program/program.h"
#include "steep/gradient.h"
#include "steep/ops.h"

namespace steep {
namespace {

using testing::as_span;
using testing::has;
using testing::import_bytes;
using testing::ops;
using testing::parse_text;
using testing::refused;
using testing::to_bytes;

constexpr const char* kHead = "<domain: \"my\", opset_import: [\"\" : 18, \"my\" : 1]> ";

std::string function(const std::string& text, const char* head = kHead) {
  onnx::FunctionProto f;
  const std::string whole = head + text;
  const auto status = onnx::OnnxParser::Parse(f, whole.c_str());
  EXPECT_TRUE(status.IsOK()) << status.ErrorMessage();
  return f.SerializeAsString();
}

std::string model(const std::string& body) {
  return to_bytes(parse_text("<ir_version: 10, opset_import: [\"\" : 18, \"my\" : 1]> " + body));
}

/// Unregisters what it registered.
class Registered {
 public:
  explicit Registered(const std::string& body, const std::string& gradient = "")
      : names_(register_op(as_span(body), as_span(gradient))) {}
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  ~Registered() {
    for (const std::string& name : names_) unregister_op(name);
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

const std::string& round_op() {
  static const std::string f = function("Round (x) => (y) { y = Round (x) }");
  return f;
}
const std::string& straight_through() {
  static const std::string f = function("RoundGrad (x, y, dy) => (dx) { dx = Identity (dy) }");
  return f;
}

constexpr const char* kRounds = R"(g (float[N, 3] x) => (float[N, 3] y)
  { r = my.Round (x)  y = Mul (r, r) })";

std::vector<float> values(const Tensor& t) { return {t.data<float>(), t.data<float>() + t.size()}; }

/// The gradient of the sum of the only output with respect to the first input.
std::vector<float> gradient(const std::string& bytes, const std::vector<Tensor>& fed) {
  Graph g = import_bytes(bytes).graph;
  const Value y[] = {g.outputs()[0].value}, x[] = {g.inputs()[0]};
  const Value none[] = {Value()};
  const Value dx = add_gradients(g, y, none, x, Phase::forward)[0];
  g.set_outputs({});
  g.add_output("dx", dx ? dx : Value());
  return values(Program(std::move(g)).forward(fed).outputs[0]);
}

Tensor row(const std::vector<float>& v) {
  const auto n = static_cast<int64_t>(v.size());
  return Tensor::from(v, {1, n});
}

std::string refusal(const std::string& f, const std::string& gradient = "") {
  const ErrorParts parts = refused([&] { register_op(as_span(f), as_span(gradient)); });
  EXPECT_TRUE(registered_ops().empty());
  return parts.what + " | " + parts.node + " | " + parts.expected + " | " + parts.received;
}

TEST(CustomFunctions, AreInlinedWhereTheyAreCalled) {
  const std::string bytes = model(kRounds);
  EXPECT_TRUE(has(refused([&] { import_bytes(bytes); }).received, "my.Round"));
  const Registered mine(round_op());
  EXPECT_EQ(mine.names(), std::vector<std::string>{"my.Round"});
  EXPECT_EQ(registered_ops(), std::vector<std::string>{"my.Round"});
  EXPECT_EQ(ops(import_bytes(bytes).graph), (std::vector<std::string>{"Round", "Mul"}));
}

TEST(CustomFunctions, AreNoLongerKnownOnceTakenBack) {
  { const Registered mine(round_op()); }
  EXPECT_TRUE(registered_ops().empty());
  EXPECT_FALSE(unregister_op("my.Round"));
  refused([] { import_bytes(model(kRounds)); });
}

TEST(CustomFunctions, HaveTheGradientThatTheyAreGiven) {
  const Registered mine(round_op(), straight_through());
  // d(round(x)²)/dx = 2·round(x), as if round were the identity
  EXPECT_EQ(gradient(model(kRounds), {row({0.4F, 1.6F, -2.4F})}), (std::vector<float>{0, 4, -4}));
}

TEST(CustomFunctions, WithoutAGradientHaveThatOfTheirBody) {
  const Registered mine(function("Cube (x) => (y) { s = Mul (x, x)  y = Mul (s, x) }"));
  const std::string bytes = model("g (float[N, 3] x) => (float[N, 3] y) { y = my.Cube (x) }");
  EXPECT_EQ(gradient(bytes, {row({1, 2, -3})}), (std::vector<float>{3, 12, 27}));
}

TEST(CustomFunctions, LeaveNoTraceInForward) {
  const Registered mine(round_op(), straight_through());
  const Program program(import_bytes(model(kRounds)).graph);
  EXPECT_EQ(ops(program.graph()), (std::vector<std::string>{"Round", "steep.StopGradient", "Mul"}));
}

TEST(CustomFunctions, GradientsReadOutputsAndSkipInputs) {
  const Registered mine(function("Scaled (x, k, w) => (a, b) { a = Mul (x, w)  b = Sub (x, w) }"),
                        function("ScaledGrad (x, k, w, a, b, da, db) => (dx, \"\", dw)"
                                 " { t = Mul (da, b)  dx = Add (t, db)  dw = Mul (db, a) }"));
  // b is unused: its gradient is zeros, and the body reads it anyway
  const std::string bytes = model(R"(g (float[N, 2] x, float[2] w, int64[1] k) => (float[N, 2] y)
    { y = my.Scaled (x, k, w) })");
  EXPECT_EQ(gradient(bytes, {row({3, 5}), Tensor::from(std::vector<float>{1, 2}, {2}),
                             Tensor::from(std::vector<int64_t>{0}, {1})}),
            (std::vector<float>{2, 3}));  // x - w
}

TEST(CustomFunctions, SumGradientsOverBroadcastAxes) {
  const Registered mine(function("Plus (x, w) => (y) { y = Add (x, w) }"),
                        function("PlusGrad (x, w, y, dy) => (dx, dw)"
                                 " { dx = Neg (dy)  dw = Neg (dy) }"));
  const std::string bytes = model(R"(g (float[2] w, float[N, 2] x) => (float[N, 2] y)
    { y = my.Plus (x, w) })");
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {3, 2});
  EXPECT_EQ(gradient(bytes, {Tensor::from(std::vector<float>{0, 0}, {2}), x}),
            (std::vector<float>{-3, -3}));
}

TEST(CustomFunctions, CallOneAnother) {
  const Registered inner(round_op(), straight_through());
  const Registered outer(
      function("Steps <n: float = 4.0> (x) => (y)"
               " { k = Constant <value_float: float = @n> ()"
               "   s = Mul (x, k)  r = my.Round (s)  y = Div (r, k) }"));
  const std::string bytes = model(R"(g (float[N, 3] x) => (float[N, 3] y)
    { a = my.Steps (x)  y = my.Steps <n: float = 2.0> (a) })");
  EXPECT_EQ(gradient(bytes, {row({0.1F, 0.6F, 2})}), (std::vector<float>{1, 1, 1}));
}

TEST(CustomFunctions, KeepTheirGradientWithinBodies) {
  const Registered mine(round_op(), straight_through());
  const std::string branch = model(R"(g (float[3] x, bool[1] c) => (float[3] y) {
    y = If (c) <then_branch = t () => (float[3] a) { a = my.Round (x) },
                else_branch = e () => (float[3] b) { b = Neg (x) }> })");
  const Tensor x = Tensor::from(std::vector<float>{0.4F, 1.6F, -2.4F}, {3});
  for (const bool taken : {true, false}) {
    const Tensor c = Tensor::empty(DType::boolean, {1});
    *static_cast<uint8_t*>(const_cast<void*>(c.data())) = taken ? 1 : 0;
    const float slope = taken ? 1 : -1;
    EXPECT_EQ(gradient(branch, {x, c}), (std::vector<float>{slope, slope, slope}));
  }
  const std::string loop = model(R"(g (float[3] x, int64 n) => (float[3] y) {
    y = Loop (n, , x) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] t) {
      d = Identity (c)  r = my.Round (s)  t = Add (r, r) }> })");
  EXPECT_EQ(gradient(loop, {x, Tensor::scalar(int64_t{3})}), (std::vector<float>{8, 8, 8}));
}

TEST(CustomFunctions, HaveSecondDerivatives) {
  // y = x³ with the registered gradient 5·y·dy: the second derivative is that of 5·y, which is
  // 5·5·y
  const Registered mine(function("Cube (x) => (y) { s = Mul (x, x)  y = Mul (s, x) }"),
                        function("CubeGrad (x, y, dy) => (dx)"
                                 " { k = Constant <value_float = 5.0> ()"
                                 "   t = Mul (y, dy)  dx = Mul (t, k) }"));
  const std::string bytes = model("g (float[3] x) => (float[3] y) { y = my.Cube (x) }");
  GradientOptions options;
  options.wrt = {"x"};
  const std::string first = gradient_model(as_span(bytes), options);
  unregister_op("my.Cube");  // the gradient model does not need it any more
  options.outputs = {"grad_x"};
  const std::string second = gradient_model(as_span(first), options);
  Program program(import_bytes(second).graph);
  const Tensor x = Tensor::from(std::vector<float>{1, 2, -1}, {3});
  const Tensor one = Tensor::from(std::vector<float>{1, 1, 1}, {3});
  const std::vector<Tensor> made = program.forward(std::vector<Tensor>{x, one, one}).outputs;
  EXPECT_EQ(values(made[0]), (std::vector<float>{5, 40, -5}));
  EXPECT_EQ(values(made[1]), (std::vector<float>{25, 200, -25}));
}

TEST(CustomFunctions, OfTheModelHaveTheRegisteredGradientIfTheyAreTheSame) {
  const std::string text =
      std::string("<ir_version: 10, opset_import: [\"\" : 18, \"my\" : 1]> ") + kRounds;
  const auto file = [&](const char* body) {
    return to_bytes(parse_text(text + kHead + "Round (a) => (b) { b = " + body + " (a) }"));
  };
  const Registered mine(round_op(), straight_through());
  EXPECT_EQ(gradient(file("Round"), {row({0.4F, 1.6F, -2.4F})}), (std::vector<float>{0, 4, -4}));
  const ErrorParts parts = refused([&] { import_bytes(file("Floor")); });
  EXPECT_TRUE(has(parts.what, "differs from the registered function"));
  EXPECT_EQ(parts.node, "my.Round");
}

TEST(CustomFunctions, RefuseNodesThatDoNotFit) {
  const Registered mine(
      function("Scale <k> (x) => (y) { c = Constant <value_float: float = @k> ()"
               " y = Mul (x, c) }"));
  const auto call = [](const std::string& nodes) {
    return refused([&] { import_bytes(model("g (float[2] x) => (float[2] y) {" + nodes + "}")); });
  };
  const ErrorParts lacks = call("[n] y = my.Scale (x)");
  EXPECT_TRUE(has(lacks.what, "lacks an attribute"));
  EXPECT_EQ(lacks.node, "n");
  EXPECT_EQ(lacks.op, "my.Scale");
  EXPECT_EQ(lacks.expected, "k");
  EXPECT_TRUE(has(call("y = my.Scale <k: float = 1.0, j: int = 1> (x)").received, "j"));
  EXPECT_TRUE(has(call("y = my.Scale <k: float = 1.0> (x, x)").what, "too many inputs"));
  EXPECT_TRUE(has(call("y, z = my.Scale <k: float = 1.0> (x)").what, "too many outputs"));
}

TEST(CustomFunctions, RefuseGradientsOfAnotherType) {
  const auto with = [](const std::string& nodes) {
    const Registered mine(round_op(), function("RoundGrad (x, y, dy) => (dx) {" + nodes + "}"));
    return refused([] {
      import_bytes(model("g (float[2, 3] x) => (float[2, 3] y) { [n] y = my.Round (x) }"));
    });
  };
  const ErrorParts dtype = with("dx = Cast <to = 11> (dy)");
  EXPECT_EQ(dtype.node, "n");
  EXPECT_EQ(dtype.op, "my.Round");
  EXPECT_TRUE(has(dtype.expected, "float32 for input 0 (x)"));
  EXPECT_TRUE(has(dtype.received, "float64"));
  const ErrorParts shape = with("dx = ReduceSum <keepdims = 0> (dy)");
  EXPECT_TRUE(has(shape.what, "another shape"));
  EXPECT_TRUE(has(shape.expected, "[2, 3]"));
}

TEST(CustomFunctions, RefuseWhatIsNoFunction) {
  EXPECT_TRUE(has(refusal("nonsense"), "not a function"));
  EXPECT_TRUE(has(refusal(function("F (x) => (y) { y = Nothing (x) }")), "Nothing"));
  EXPECT_TRUE(has(refusal(function("F (x) => (y) { y = my.Nothing (x) }")), "my.Nothing"));
  EXPECT_TRUE(has(refusal(function("F (x) => (y) { z = Neg (x) }")), "nothing defines"));
  EXPECT_TRUE(has(refusal(function("F (x) => (y) { y = Elu <alpha: float = @a> (x) }")), "@a"));
  EXPECT_TRUE(has(refusal(function("F (x) => (y) { y = my.F (x) }")), "calls itself"));
  EXPECT_TRUE(has(refusal(round_op(), function("G (x, y, dy) => (dx) { dx = my.Round (dy) }")),
                  "calls itself"));
}

TEST(CustomFunctions, RefuseReservedDomains) {
  for (const char* domain : {"", "ai.onnx", "ai.onnx.ml", "steep", "steep.optimizer"}) {
    const std::string head =
        std::string("<domain: \"") + domain + "\", opset_import: [\"\" : 18]> ";
    EXPECT_TRUE(has(refusal(function("F (x) => (y) { y = Neg (x) }", head.c_str())), "reserved"));
  }
}

TEST(CustomFunctions, RefuseGradientsOfAnotherArity) {
  EXPECT_TRUE(has(refusal(round_op(), function("G (x, dy) => (dx) { dx = Neg (dy) }")),
                  "3: 1 input, 1 output, 1 gradient"));
  EXPECT_TRUE(
      has(refusal(round_op(), function("G (x, y, dy) => (dx, d) { dx = Neg (dy)  d = Neg (dy) }")),
          "at most 1"));
  EXPECT_TRUE(has(refusal(round_op(), function("G <k: float = 1.0> (x, y, dy) => (dx)"
                                               " { dx = Neg (dy) }")),
                  "does not have"));
}

TEST(CustomFunctions, TwiceTheSameIsOnceAndAnotherIsRefused) {
  const Registered mine(round_op(), straight_through());
  const Registered again(function("Round (a) => (b) { b = Round (a) }"), straight_through());
  EXPECT_TRUE(again.names().empty());
  for (const auto& pair :
       {std::pair(round_op(), std::string()),
        std::pair(function("Round (x) => (y) { y = Floor (x) }"), straight_through())}) {
    const ErrorParts parts =
        refused([&] { register_op(as_span(pair.first), as_span(pair.second)); });
    EXPECT_TRUE(has(parts.what, "registered already"));
    EXPECT_EQ(parts.node, "my.Round");
  }
}

class OwnFile : public ::testing::Test {
 protected:
  ~OwnFile() override {
    for (const std::string& name : registered_ops()) unregister_op(name);
    std::filesystem::remove(path_);
  }
  std::vector<std::string> load(const std::string& functions) const {
    const std::string bytes = to_bytes(parse_text(
        "<ir_version: 10, opset_import: [\"\" : 18, \"my\" : 1]> g () => () {} " + functions));
    std::ofstream(path_, std::ios::binary) << bytes;
    return register_ops(path_);
  }

 private:
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("own_ops_" + std::to_string(getpid()) + ".onnx");
};

TEST_F(OwnFile, HoldsOperatorsGradientsAndOptimizers) {
  const std::string head = kHead;
  const std::vector<std::string> names = load(
      // in any order
      head + "Twice (x) => (y) { r = my.Round (x)  y = Add (r, r) } " +  //
      head + "RoundGrad (x, y, dy) => (dx) { dx = Identity (dy) } " +    //
      head + "Round (x) => (y) { y = Round (x) } " +
      "<domain: \"steep.optimizer\", opset_import: [\"\" : 18]> plain (w, g, lr, step) => (v)"
      " { d = Mul (lr, g)  v = Sub (w, d) }");
  EXPECT_EQ(names, (std::vector<std::string>{"my.Round", "my.Twice", "steep.optimizer.plain"}));
  const std::string bytes = model("g (float[N, 3] x) => (float[N, 3] y) { y = my.Twice (x) }");
  EXPECT_EQ(gradient(bytes, {row({0.4F, 1.6F, -2.4F})}), (std::vector<float>{2, 2, 2}));
}

TEST_F(OwnFile, IsAllOrNothing) {
  const std::string head = kHead;
  EXPECT_TRUE(has(refused([&] {
                    load(head + "Good (x) => (y) { y = Neg (x) } " + head +
                         "Bad (x) => (y) { y = Nothing (x) }");
                  }).received,
                  "Nothing"));
  EXPECT_TRUE(has(refused([&] {
                    load(head + "A (x) => (y) { y = my.B (x) } " + head +
                         "B (x) => (y) { y = my.A (x) }");
                  }).what,
                  "calls itself"));
  EXPECT_TRUE(has(refused([&] {
                    load(head + "A (x) => (y) { y = Neg (x) } " + head +
                         "AGrad (x, y, dy) => (dx) { dx = Neg (dy) } " + head +
                         "AGradGrad (x, y, dy, dx, d) => (a) { a = Neg (d) }");
                  }).what,
                  "A gradient has a gradient"));
  EXPECT_TRUE(has(refused([&] { load(""); }).what, "no function"));
  EXPECT_TRUE(registered_ops().empty());
  EXPECT_THROW(register_ops("there/is/none.onnx"), IoError);
}

TEST(CustomFunctions, MayBeRegisteredFromManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string name = "F" + std::to_string(t);
      const std::string f = function(name + " (x) => (y) { y = Neg (x) }");
      const std::string bytes = model("g (float[2] x) => (float[2] y) { y = my." + name + " (x) }");
      for (int i = 0; i < 50; ++i) {
        const Registered mine(f);
        if (ops(import_bytes(bytes).graph) != std::vector<std::string>{"Neg"}) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(registered_ops().empty());
}

}  // namespace
}  // namespace steep
