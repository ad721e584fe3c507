#include <gtest/gtest.h>

#include "model/onnx_text.h"
#include "steep/error.h"

namespace steep {
namespace {

using testing::import_graph;
using testing::ops;
using Ops = std::vector<std::string>;

TEST(Import, KeepsNamesTypesAndSymbols) {
  const ImportedModel m = import_graph(17, R"(
    g (float[N, 3] x) => (float[N, 5] y) <float[3, 5] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}>
    { h = MatMul(x, w)  y = Relu(h) })");
  EXPECT_EQ(m.opset, 17);
  EXPECT_EQ(ops(m.graph), (Ops{"MatMul", "Relu"}));
  ASSERT_EQ(m.graph.inputs().size(), 1);
  EXPECT_EQ(to_string(m.graph.inputs()[0].type()), "float32[N, 3]");
  const Value w = m.graph.find("w");
  ASSERT_TRUE(w);
  EXPECT_EQ(w.role(), Role::constant);
  EXPECT_EQ(w.tensor()->data<float>()[14], 15);
  EXPECT_EQ(to_string(m.graph.find("h").type()), "float32[N, 5]");
  ASSERT_EQ(m.graph.outputs().size(), 1);
  EXPECT_EQ(m.graph.outputs()[0].name, "y");
  EXPECT_EQ(m.graph.outputs()[0].value, m.graph.find("y"));
  verify(m.graph, "import");
}

TEST(Import, InputWithInitializerIsAConstant) {
  const ImportedModel m = import_graph(17, R"(
    g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) })");
  EXPECT_EQ(m.graph.inputs().size(), 1);
  EXPECT_EQ(m.graph.find("w").role(), Role::constant);
}

TEST(Import, AxesBecomeInputs) {
  const ImportedModel m = import_graph(11, R"(
    g (float[2, 1, 3] x) => (float[2] y) {
      a = Squeeze <axes = [1]> (x)
      b = Unsqueeze <axes = [0]> (a)
      y = ReduceMean <axes = [0, 2], keepdims = 0> (b) })");
  EXPECT_EQ(ops(m.graph), (Ops{"Squeeze", "Unsqueeze", "ReduceMean"}));
  for (Node n : m.graph.nodes()) {
    EXPECT_FALSE(n.attrs().has("axes"));
    EXPECT_EQ(n.input_count(), 2);
  }
  EXPECT_EQ(to_string(m.graph.find("y").type()), "float32[2]");
}

TEST(Import, OldSliceAndPadAndClipGetInputs) {
  const ImportedModel m = import_graph(9, R"(
    g (float[4, 4] x) => (float[6, 2] y) {
      a = Slice <axes = [1], starts = [0], ends = [2]> (x)
      b = Pad <pads = [1, 0, 1, 0], value = 2.0> (a)
      y = Clip <min = -1.0, max = 1.0> (b) })");
  EXPECT_EQ(ops(m.graph), (Ops{"Slice", "Pad", "Clip"}));
  EXPECT_EQ(to_string(m.graph.find("y").type()), "float32[6, 2]");
  const Node clip = m.graph.find("y").producer();
  ASSERT_EQ(clip.input_count(), 3);
  EXPECT_EQ(*clip.input(2).tensor()->data<float>(), 1.0F);
}

TEST(Import, OldSoftmaxFlattens) {
  const ImportedModel last =
      import_graph(11, "g (float[2, 3] x) => (float[2, 3] y) { y = Softmax(x) }");
  EXPECT_EQ(ops(last.graph), (Ops{"Softmax"}));
  EXPECT_EQ(last.graph.nodes()[0].attrs().integer("axis", 0), -1);
  const ImportedModel first =
      import_graph(11, "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax <axis = 1> (x) }");
  ASSERT_EQ(first.graph.node_count(), 3);  // the shape is known, so there is no Shape node
  EXPECT_EQ(to_string(first.graph.nodes()[0].output(0).type()), "float32[2, 12]");
  EXPECT_EQ(to_string(first.graph.find("y").type()), "float32[2, 3, 4]");
}

TEST(Import, GemmBecomesMatMul) {
  const ImportedModel m = import_graph(13, R"(
    g (float[N, 3] x, float[5, 3] w, float[5] b) => (float[N, 5] y)
    { y = Gemm <transB = 1, alpha = 0.5> (x, w, b) })");
  EXPECT_EQ(ops(m.graph), (Ops{"Transpose", "MatMul", "Mul", "Add"}));
  EXPECT_EQ(to_string(m.graph.find("y").type()), "float32[N, 5]");
}

TEST(Import, SplitAlwaysHasSizes) {
  const ImportedModel m = import_graph(18, R"(
    g (float[N, 7] x) => (float[N, 4] a, float[N, 3] b) { a, b = Split <axis = 1, num_outputs = 2> (x) })");
  const Node split = m.graph.nodes()[0];
  ASSERT_EQ(split.input_count(), 2);
  EXPECT_EQ(split.input(1).tensor()->to_ints(), (Ints{4, 3}));
}

TEST(Import, OptionalOutputsThatNothingReadsAreNotAskedFor) {
  const ImportedModel m = import_graph(17, R"(
    g (float[1, 1, 4] x, bool c) => (float[1, 1, 2] y, int64[1, 1, 2] i) {
      a, unread = MaxPool <kernel_shape = [2]> (x)
      b, below = MaxPool <kernel_shape = [2]> (x)
      i = If (c) <then_branch = t () => (j) { j = Identity(below) },
                  else_branch = e () => (k) { k = Neg(below) }>
      y = Add(a, b) })");
  std::vector<int> outputs;
  for (Node n : m.graph.nodes()) {
    if (n.op() == "MaxPool") outputs.push_back(n.output_count());
  }
  EXPECT_EQ(outputs, (std::vector<int>{1, 2}));
}

TEST(Import, SequencesVanish) {
  const ImportedModel m = import_graph(17, R"(
    g (float[N, 6] x) => (float[N, 4] y) <int64 split = {2}, int64 first = {0}, int64 last = {-1}> {
      s = SplitToSequence <axis = 1> (x, split)
      a = SequenceAt(s, first)
      b = SequenceAt(s, last)
      y = Concat <axis = 1> (a, b) })");
  EXPECT_EQ(ops(m.graph), (Ops{"Split", "Concat"}));
  EXPECT_EQ(to_string(m.graph.find("y").type()), "float32[N, 4]");
}

TEST(Import, IdentityConstantAndFlattenVanish) {
  const ImportedModel m = import_graph(17, R"(
    g (float[N, 3, 4] x) => (float[N, 12] y) {
      i = Identity(x)
      two = Constant <value_float = 2.0> ()
      m = Mul(i, two)
      y = Flatten(m) })");
  EXPECT_EQ(ops(m.graph), (Ops{"Mul", "Reshape"}));
  EXPECT_EQ(m.graph.find("two").role(), Role::constant);
}

constexpr const char* kDropout = R"(
  g (float[2, 3] x) => (float[2, 3] y) <float ratio = {0.25}, bool on = {1}> {
    a = Dropout(x, ratio, on)
    b = Dropout(a, ratio, on)
    y = Dropout(b, ratio) })";

TEST(Import, DropoutInTrainingHasOneStreamPerNode) {
  const ImportedModel m = import_graph(17, kDropout);
  ASSERT_EQ(ops(m.graph),
            (Ops{"steep.Dropout", "steep.Dropout"}));  // the third is not in training mode
  const auto nodes = m.graph.nodes();
  EXPECT_DOUBLE_EQ(nodes[0].attrs().real("ratio", 0), 0.25);
  EXPECT_NE(nodes[0].attrs().integer("stream", -1), nodes[1].attrs().integer("stream", -1));
}

TEST(Import, DropoutForInferenceIsIdentity) {
  const std::string bytes = testing::to_bytes(
      testing::parse_text(std::string("<ir_version: 8, opset_import: [\"\" : 17]>") + kDropout));
  EXPECT_EQ(import_model(testing::as_span(bytes), {.training = false}).graph.node_count(), 0);
}

TEST(Import, AttentionDropoutOfPyTorchCounts) {
  onnx::ModelProto model =
      testing::parse_text(std::string("<ir_version: 8, opset_import: [\"\" : 17]>") + kDropout);
  model.set_producer_name("pytorch");
  EXPECT_EQ(testing::import_bytes(testing::to_bytes(model)).graph.node_count(), 3);
}

TEST(Import, LayerNormalizationHasThreeOutputs) {
  const ImportedModel m = import_graph(17, R"(
    g (float[N, 3] x, float[3] s) => (float[N, 3] y) { y = LayerNormalization(x, s) })");
  EXPECT_EQ(m.graph.nodes()[0].output_count(), 3);
}

TEST(Import, OldBatchNormalizationTrainsByItsOutputs) {
  const char* body = R"(g (float[N, 2, 3] x, float[2] s) => (float[N, 2, 3] y)
    { y, m, v, saved_m, saved_v = BatchNormalization(x, s, s, s, s) })";
  const ImportedModel m = import_graph(9, body);
  ASSERT_EQ(ops(m.graph), (Ops{"BatchNormalization"}));
  EXPECT_EQ(m.graph.nodes()[0].attrs().integer("training_mode", 0), 1);
  EXPECT_EQ(m.graph.nodes()[0].output_count(), 3);
}

TEST(Import, ConstantBranchIsInlined) {
  const ImportedModel m = import_graph(17, R"(
    g (float[2] x) => (float[2] y) <bool c = {0}> {
      y = If (c) <
        then_branch = t () => (float[2] a) { a = Relu(x) },
        else_branch = e () => (float[2] b) { b = Tanh(x) }> })");
  EXPECT_EQ(ops(m.graph), (Ops{"Tanh"}));
}

TEST(Import, FunctionsAreInlined) {
  const std::string text = R"(
    <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[N] x) => (float[N] y) { h = own.scaled <k = 3> (x)  y = own.scaled <k = 2> (h) }
    <opset_import: ["" : 17], domain: "own">
    scaled <k> (a) => (b) { c = Constant <value_int: int = @k> ()  f = CastLike(c, a)  b = Mul(a, f) })";
  const ImportedModel m = testing::import_bytes(testing::to_bytes(testing::parse_text(text)));
  EXPECT_EQ(ops(m.graph), (Ops{"Cast", "Mul", "Cast", "Mul"}));
  EXPECT_EQ(to_string(m.graph.find("y").type()), "float32[N]");
}

TEST(Import, CompositeOperatorsOfOnnxAreInlined) {
  // RMSNormalization has no OpDef; ONNX defines it by a function.
  const ImportedModel m = import_graph(23, R"(
    g (float[2, 3, 4] x, float[4] s) => (float[2, 3, 4] y) { y = RMSNormalization(x, s) })");
  const Ops found = ops(m.graph);
  EXPECT_GT(found.size(), 4);
  EXPECT_EQ(std::count(found.begin(), found.end(), "RMSNormalization"), 0);
  EXPECT_EQ(m.graph.find("y").dtype(), DType::f32);
}

TEST(Import, ShapeArithmeticIsFolded) {
  const ImportedModel m = import_graph(17, R"(
    g (float[N, 6] x) => (float[N, 3, 2] y) <int64 one = {1}, int64[1] zero = {0}, int64[1] two = {2}> {
      s = Shape(x)
      six = Gather <axis = 0> (s, one)
      six1 = Unsqueeze(six, zero)
      three = Div(six1, two)
      n = Shape <start = 0, end = 1> (x)
      t = Concat <axis = 0> (n, three, two)
      y = Reshape(x, t) })");
  EXPECT_EQ(to_string(m.graph.find("y").type()), "float32[N, 3, 2]");
}

TEST(Import, TypedFieldsAreRead) {
  onnx::ModelProto model = testing::parse_text(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) { y = Relu(x) })");
  auto add = [&](const char* name, int32_t type) {
    onnx::TensorProto* t = model.mutable_graph()->add_initializer();
    t->set_name(name);
    t->set_data_type(type);
    t->add_dims(2);
    return t;
  };
  onnx::TensorProto* half = add("half", onnx::TensorProto::FLOAT16);
  half->add_int32_data(0x3C00);
  half->add_int32_data(0x4000);
  onnx::TensorProto* flags = add("flags", onnx::TensorProto::BOOL);
  flags->set_raw_data(std::string("\x07\x00", 2));
  onnx::TensorProto* wide = add("wide", onnx::TensorProto::UINT32);
  wide->add_uint64_data(7);
  wide->add_uint64_data(4'000'000'000U);
  const ImportedModel m = testing::import_bytes(testing::to_bytes(model));
  EXPECT_EQ(static_cast<const uint16_t*>(m.graph.find("half").tensor()->data())[1], 0x4000);
  EXPECT_EQ(m.graph.find("flags").tensor()->to_ints(), (Ints{1, 0}));
  EXPECT_EQ(m.graph.find("wide").tensor()->data<uint32_t>()[1], 4'000'000'000U);
}

}  // namespace
}  // namespace steep
