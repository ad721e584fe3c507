// Checks that ONNX's library is linked completely: schemas register themselves, and the checker,
// shape inference, function bodies and the opset converter work.

#include <gtest/gtest.h>
#include <onnx/checker.h>
#include <onnx/defs/parser.h>
#include <onnx/defs/schema.h>
#include <onnx/shape_inference/implementation.h>
#include <onnx/version_converter/convert.h>

#include <string>

namespace steep {
namespace {

onnx::ModelProto parse(const char* text) {
  onnx::ModelProto model;
  const onnx::Common::Status status = onnx::OnnxParser::Parse(model, text);
  EXPECT_TRUE(status.IsOK()) << status.ErrorMessage();
  return model;
}

constexpr const char* kMatMul = R"(
  <ir_version: 8, opset_import: ["" : 17]>
  g (float[B, 3] x, float[3, 5] w) => (float[B, 5] y) { y = MatMul(x, w) }
)";

TEST(Onnx, SchemasAreRegistered) {
  const onnx::OpSchema* softmax = onnx::OpSchemaRegistry::Schema("Softmax", 17);
  ASSERT_NE(softmax, nullptr);
  EXPECT_EQ(softmax->since_version(), 13);
  EXPECT_TRUE(softmax->HasContextDependentFunction());
  EXPECT_EQ(onnx::OpSchemaRegistry::Schema("NoSuchOp", 17), nullptr);
}

TEST(Onnx, CheckerAcceptsAndRefuses) {
  onnx::ModelProto model = parse(kMatMul);
  EXPECT_NO_THROW(onnx::checker::check_model(model));
  model.mutable_graph()->mutable_node(0)->set_op_type("NoSuchOp");
  EXPECT_THROW(onnx::checker::check_model(model), onnx::checker::ValidationError);
}

TEST(Onnx, ShapesAreInferred) {
  onnx::ModelProto model = parse(R"(
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[B, 3] x, float[3, 5] w) => (float[B, 5] y) { h = MatMul(x, w)  y = Relu(h) }
  )");
  onnx::shape_inference::InferShapes(model);
  ASSERT_EQ(model.graph().value_info_size(), 1);
  const onnx::TensorShapeProto& h = model.graph().value_info(0).type().tensor_type().shape();
  ASSERT_EQ(h.dim_size(), 2);
  EXPECT_EQ(h.dim(0).dim_param(), "B");
  EXPECT_EQ(h.dim(1).dim_value(), 5);
}

TEST(Onnx, OpsetsAreConverted) {
  const onnx::ModelProto raised = onnx::version_conversion::ConvertVersion(parse(kMatMul), 21);
  EXPECT_EQ(raised.opset_import(0).version(), 21);
  EXPECT_EQ(raised.graph().node(0).op_type(), "MatMul");
}

}  // namespace
}  // namespace steep
