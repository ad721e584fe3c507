// Models that must be refused, with a typed error that names the problem, the place and the remedy.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "errors/refused.h"
#include "model/read/wire.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;
using testing::has;
using testing::import_bytes;
using testing::import_graph;
using testing::parse_text;
using testing::refused;
using testing::small;
using testing::to_bytes;
using testing::weight;

ErrorParts refused(const std::string& bytes, const Limits& limits = {}) {
  return testing::refused([&] { import_bytes(bytes, limits); });
}

// --- bytes ---------------------------------------------------------------------------------------

TEST(BadModel, Empty) { EXPECT_TRUE(has(refused("").what, "empty")); }

TEST(BadModel, EveryTruncationIsRefused) {
  const std::string whole = to_bytes(small());
  for (size_t n = 0; n < whole.size(); ++n) {
    // A cut between two fields leaves a valid message, which lacks its opset or its graph, or is
    // too short.
    refused(whole.substr(0, n));
  }
}

TEST(BadModel, RandomBytesAreRefused) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 300 + 1, '\0');
    for (char& b : bytes) b = static_cast<char>(random());
    refused(bytes);
  }
}

TEST(BadModel, EveryFlippedBitIsReadOrRefused) {
  const std::string whole = to_bytes(small());
  int failures = 0;
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    try {
      import_bytes(bytes);
    } catch (const Error&) {
      ++failures;
    }
  }
  EXPECT_GT(failures, 0);
}

TEST(BadModel, ClaimOfMoreBytesThanPresent) {
  std::string bytes;
  append_bytes_header(bytes, 7, size_t{1} << 50);
  const ErrorParts e = refused(bytes + "abc");
  EXPECT_TRUE(has(e.what, "truncated"));
  EXPECT_TRUE(has(e.received, "3"));
}

TEST(BadModel, MissingFileIsAnIoError) {
  EXPECT_THROW(import_model(fs::path("/nonexistent/model.onnx")), IoError);
  EXPECT_THROW(import_model(fs::path("/")), IoError);
}

// --- limits --------------------------------------------------------------------------------------

/// graph { node { op "If" attribute { g { node … } } } }, `depth` times.
std::string nested_model(int depth) {
  std::string graph;
  append_bytes_header(graph, 2, 1);
  graph += "g";
  for (int i = 0; i < depth; ++i) {
    std::string attribute;
    append_bytes_header(attribute, 6, graph.size());
    attribute += graph;
    std::string node;
    append_bytes_header(node, 5, attribute.size());
    node += attribute;
    graph.clear();
    append_bytes_header(graph, 1, node.size());
    graph += node;
  }
  std::string model;
  append_bytes_header(model, 7, graph.size());
  return model + graph;
}

TEST(BadModel, GraphsNestedTenThousandDeep) {
  EXPECT_TRUE(has(refused(nested_model(10'000)).what, "nested too deep"));
}

TEST(BadModel, TypesNestedTenThousandDeep) {
  std::string type;  // sequence_type { elem_type { sequence_type … } }
  for (int i = 0; i < 10'000; ++i) {
    std::string sequence;
    append_bytes_header(sequence, 1, type.size());
    sequence += type;
    type.clear();
    append_bytes_header(type, 4, sequence.size());
    type += sequence;
  }
  onnx::ModelProto model = small();
  std::string input;
  append_bytes_header(input, 2, type.size());
  std::string graph;
  append_bytes_header(graph, 11, input.size() + type.size());
  std::string bytes;
  append_bytes_header(bytes, 7, graph.size() + input.size() + type.size());
  EXPECT_TRUE(has(refused(bytes + graph + input + type).what, "cannot be parsed"));
}

TEST(BadModel, NodeLimit) {
  std::string body = "g (float[2] x0) => (float[2] x20) {";
  for (int i = 0; i < 20; ++i) body += fmt::format("x{} = Relu(x{}) ", i + 1, i);
  EXPECT_NO_THROW(import_graph(17, body + "}", {.max_nodes = 20}));
  const ErrorParts e = refused([&] { import_graph(17, body + "}", {.max_nodes = 19}); });
  EXPECT_TRUE(has(e.remedy, "max_nodes"));
}

TEST(BadModel, ByteLimit) {
  const std::string bytes = to_bytes(small());
  EXPECT_TRUE(has(refused(bytes, {.max_bytes = bytes.size() - 1}).remedy, "max_bytes"));
}

TEST(BadModel, DoublingFunctionsMeetTheNodeLimit) {
  std::string text = R"(<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[2] x) => (float[2] y) { y = own.f30(x) })";
  const char* head = R"(<opset_import: ["" : 17, "own" : 1], domain: "own">)";
  text += std::string(head) + "f0 (a) => (b) { b = Identity(a) }";
  for (int i = 1; i <= 30; ++i) {
    text += fmt::format("{} f{} (a) => (c) {{ b = own.f{}(a)  c = own.f{}(b) }}", head, i, i - 1,
                        i - 1);
  }
  EXPECT_TRUE(has(refused(to_bytes(parse_text(text)), {.max_nodes = 10'000}).remedy, "max_nodes"));
}

TEST(BadModel, RecursiveFunctions) {
  const std::string text = R"(<ir_version: 7, opset_import: ["" : 17, "own" : 1]>
    g (float[2] x) => (float[2] y) { y = own.f(x) }
    <opset_import: ["" : 17, "own" : 1], domain: "own"> f (a) => (b) { b = own.h(a) }
    <opset_import: ["" : 17, "own" : 1], domain: "own"> h (a) => (b) { b = own.f(a) })";
  EXPECT_TRUE(has(refused(to_bytes(parse_text(text))).what, "calls itself"));
  onnx::ModelProto checked = parse_text(text);
  checked.set_ir_version(8);  // from this version on ONNX's checker checks functions
  EXPECT_TRUE(has(refused(to_bytes(checked)).received, "Cycle"));
}

TEST(BadModel, DeepFunctionCalls) {
  std::string text = R"(<ir_version: 7, opset_import: ["" : 17, "own" : 1]>
    g (float[2] x) => (float[2] y) { y = own.f20(x) })";
  const char* head = R"(<opset_import: ["" : 17, "own" : 1], domain: "own">)";
  text += std::string(head) + "f0 (a) => (b) { b = Identity(a) }";
  for (int i = 1; i <= 20; ++i)
    text += fmt::format("{} f{} (a) => (b) {{ b = own.f{}(a) }}", head, i, i - 1);
  EXPECT_NO_THROW(import_bytes(to_bytes(parse_text(text)), {.max_depth = 21}));
  EXPECT_TRUE(has(refused(to_bytes(parse_text(text)), {.max_depth = 20}).remedy, "max_depth"));
}

// --- versions and operators ----------------------------------------------------------------------

TEST(BadModel, UnknownOperatorsAreAllListed) {
  const ErrorParts e = refused([] {
    import_graph(17, R"(g (float[2] x) => (float[2] y)
      { a = Frobnicate(x)  b = Relu(a)  c = com.acme.Fancy(b)  y = Gelu(c) })");
  });
  EXPECT_EQ(e.op, "Frobnicate");
  EXPECT_EQ(e.node, "a");
  EXPECT_TRUE(has(e.what, "3 operators"));
  EXPECT_TRUE(has(e.received, "Frobnicate (node a)")) << e.received;
  EXPECT_TRUE(has(e.received, "com.acme.Fancy (node c)")) << e.received;
  EXPECT_TRUE(has(e.received, "Gelu (node y; exists from opset 20, the model imports 17)"))
      << e.received;
  EXPECT_TRUE(has(e.remedy, "com.acme"));
}

TEST(BadModel, UnknownOperatorInSubgraphAndFunction) {
  const ErrorParts e = refused([] {
    import_bytes(to_bytes(parse_text(R"(<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
      g (float[2] x, bool c) => (float[2] y) {
        h = own.f(x)
        y = If (c) < then_branch = t () => (float[2] a) { a = Inner(h) },
                     else_branch = e () => (float[2] b) { b = Tanh(h) }> }
      <opset_import: ["" : 17], domain: "own"> f (a) => (b) { b = Deep(a) })")));
  });
  EXPECT_TRUE(has(e.received, "Inner"));
  EXPECT_TRUE(has(e.received, "Deep"));
}

TEST(BadModel, Opsets) {
  for (const int opset : {1, 6, 99}) {
    onnx::ModelProto m = small();
    m.mutable_opset_import(0)->set_version(opset);
    const ErrorParts e = refused(to_bytes(m));
    EXPECT_TRUE(has(e.received, "opset " + std::to_string(opset)));
    EXPECT_TRUE(has(e.expected, "opset 7 to"));
    EXPECT_FALSE(e.remedy.empty());
  }
  onnx::ModelProto none = small();
  none.clear_opset_import();
  refused(to_bytes(none));
  onnx::ModelProto negative = small();
  negative.mutable_opset_import(0)->set_version(INT64_MIN);
  refused(to_bytes(negative));
}

TEST(BadModel, IrVersions) {
  for (const int64_t version : {int64_t{0}, int64_t{2}, int64_t{1000}, INT64_MAX}) {
    onnx::ModelProto m = small();
    m.set_ir_version(version);
    EXPECT_TRUE(has(refused(to_bytes(m)).what, "ir_version"));
  }
}

TEST(BadModel, CheckerNamesNodeAndOp) {
  onnx::ModelProto m = small();
  m.mutable_graph()->mutable_node(0)->set_name("product");
  m.mutable_graph()->mutable_node(0)->add_input("x");
  const ErrorParts e = refused(to_bytes(m));
  EXPECT_EQ(e.node, "product");
  EXPECT_EQ(e.op, "MatMul");
  EXPECT_TRUE(has(e.received, "input size"));
}

TEST(BadModel, BranchesThatDisagree) {
  const ErrorParts e = refused([] {
    import_graph(17, R"(g (float[2] x, bool c) => (float[2] y) {
      y = If (c) < then_branch = t () => (float[2] a) { a = Relu(x) },
                   else_branch = e () => (int64[2] b) { b = Cast <to = 7> (x) }> })");
  });
  EXPECT_TRUE(has(e.what, "differ in an output's element type"));
  EXPECT_EQ(e.node, "y");
  EXPECT_EQ(e.op, "If");
}

TEST(BadModel, LoopsThatDoNotFitTheirBodies) {
  const ErrorParts e = refused([] {
    import_graph(17, R"(g (float[2] x, int64 t) => (float[2] y) {
      y = Loop (t, , x) < body = b (int64 i, bool c) => (bool on, float[2] z) {
        on = Identity(c)  z = Relu(x) } > })");
  });
  EXPECT_TRUE(has(e.what, "do not match"));
  EXPECT_EQ(e.op, "Loop");
}

TEST(BadModel, MismatchedShapesNameTheNode) {
  try {
    import_graph(17, "g (float[2, 3] x, float[4, 5] w) => (float[2, 5] y) { y = MatMul(x, w) }");
    FAIL() << "nothing was thrown";
  } catch (const ShapeError& e) {
    EXPECT_EQ(e.parts().node, "y");
    EXPECT_EQ(e.parts().op, "MatMul");
  }
}

TEST(BadModel, AxesThatOverflow) {
  EXPECT_THROW(import_graph(17,
                            "g (float[2, 3] x, float[3] w) => (float[2, 3] y) "
                            "{ y = LayerNormalization <axis = 9223372032559808512> (x, w) }"),
               ShapeError);
}

TEST(BadModel, InvalidUtf8IsEscaped) {
  onnx::ModelProto m = small();
  m.mutable_graph()->mutable_node(0)->set_name("bad\xff");
  EXPECT_EQ(refused(to_bytes(m)).node, "bad\\xff");
}

TEST(BadModel, CyclesAndUndefinedNames) {
  refused(
      [] { import_graph(17, "g (float[2] x) => (float[2] y) { y = Add(x, z)  z = Relu(y) }"); });
  refused([] { import_graph(17, "g (float[2] x) => (float[2] y) { y = Add(x, nothing) }"); });
  refused([] { import_graph(17, "g (float[2] x) => (float[2] nowhere) { y = Relu(x) }"); });
}

// --- tensors -------------------------------------------------------------------------------------

TEST(BadModel, DimsWhoseProductOverflows) {
  onnx::ModelProto m = small();
  weight(m)->clear_dims();
  for (int i = 0; i < 4; ++i) weight(m)->add_dims(int64_t{1} << 20);
  const ErrorParts e = refused(to_bytes(m));
  EXPECT_EQ(e.node, "w");
  EXPECT_TRUE(has(e.what, "shape"));
  weight(m)->clear_dims();
  weight(m)->add_dims(-6);
  EXPECT_EQ(refused(to_bytes(m)).node, "w");
  weight(m)->clear_dims();
  weight(m)->add_dims(int64_t{1} << 62);  // the count fits into int64, the bytes do not
  EXPECT_EQ(refused(to_bytes(m)).node, "w");
}

TEST(BadModel, DataThatDoesNotFillItsShape) {
  for (const int64_t extent : {int64_t{0}, int64_t{5}, int64_t{7}, int64_t{1} << 48}) {
    onnx::ModelProto m = small();
    weight(m)->clear_dims();
    weight(m)->add_dims(extent);
    EXPECT_EQ(refused(to_bytes(m)).node, "w") << extent;
    weight(m)->clear_float_data();
    weight(m)->set_raw_data(std::string(24, '\0'));
    EXPECT_EQ(refused(to_bytes(m)).node, "w") << extent;
  }
}

TEST(BadModel, ElementTypesThatAreNotHeld) {
  for (const int type : {0, 8, 14, 15, 29, 99}) {
    onnx::ModelProto m = small();
    weight(m)->set_data_type(type);
    const ErrorParts e = refused(to_bytes(m));
    EXPECT_EQ(e.node, "w");
    EXPECT_TRUE(has(e.what, "element type")) << e.what;
  }
}

TEST(BadModel, SparseTensors) {
  for (const int64_t index : {-1, 1, 6}) {  // [1, 1] is unordered, 6 is out of range
    onnx::ModelProto m = small();
    onnx::SparseTensorProto* sparse = m.mutable_graph()->add_sparse_initializer();
    sparse->add_dims(6);
    sparse->mutable_values()->set_name("s");
    sparse->mutable_values()->set_data_type(1);
    sparse->mutable_values()->add_dims(2);
    sparse->mutable_values()->add_float_data(1);
    sparse->mutable_values()->add_float_data(2);
    sparse->mutable_indices()->set_data_type(7);
    sparse->mutable_indices()->add_dims(2);
    sparse->mutable_indices()->add_int64_data(1);
    sparse->mutable_indices()->add_int64_data(index);
    const ErrorParts e = refused(to_bytes(m));
    EXPECT_EQ(e.node, "s");
    EXPECT_TRUE(has(e.what, "sparse")) << e.what;
  }
}

TEST(BadModel, InputsThatAreNoTensors) {
  onnx::ModelProto m = small();
  m.mutable_graph()
      ->mutable_input(0)
      ->mutable_type()
      ->mutable_sequence_type()
      ->mutable_elem_type()
      ->mutable_tensor_type()
      ->set_elem_type(1);
  EXPECT_TRUE(has(refused(to_bytes(m)).what, "is not a tensor"));
  auto* map = m.mutable_graph()->mutable_input(0)->mutable_type()->mutable_map_type();
  map->set_key_type(onnx::TensorProto::INT64);
  map->mutable_value_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
  EXPECT_EQ(refused(to_bytes(m)).node, "x");
  onnx::ModelProto negative = small();
  negative.mutable_graph()
      ->mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_value(-3);
  EXPECT_EQ(refused(to_bytes(negative)).node, "x");
}

}  // namespace
}  // namespace steep
