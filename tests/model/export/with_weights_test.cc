#include "model/export/with_weights.h"

#include <gtest/gtest.h>

#include <fstream>

#include "model/onnx_text.h"
#include "steep/error.h"

namespace steep {
namespace {

using testing::as_span;
using testing::parse_text;
using testing::to_bytes;

std::string model_bytes() {
  onnx::ModelProto m = parse_text(R"(<ir_version: 8, opset_import: ["" : 17], producer_name: "p">
    g (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}, float[2] b = {5, 6}>
    { h = MatMul(x, w)  y = Add(h, b) })");
  m.mutable_graph()->mutable_initializer(0)->set_doc_string("kept");
  std::string bytes = to_bytes(m);
  bytes += std::string("\xfa\x7f\x03xyz", 6);  // field 2047, from a later version of the format
  return bytes;
}

TEST(WithWeights, NothingReplacedIsTheSameFile) {
  const std::string before = model_bytes();
  EXPECT_EQ(with_weights(as_span(before), {}), before);
}

TEST(WithWeights, ReplacesOnlyWhatIsNamed) {
  const std::string before = model_bytes();
  const std::string after =
      with_weights(as_span(before), {{"w", Tensor::from<float>({9, 8, 7, 6}, {2, 2})}});
  const ImportedModel m = testing::import_bytes(after);
  EXPECT_EQ(m.graph.find("w").tensor()->data<float>()[0], 9);
  EXPECT_EQ(m.graph.find("b").tensor()->data<float>()[1], 6);
  // The same file except for the data of one tensor.
  onnx::ModelProto a;
  onnx::ModelProto b;
  ASSERT_TRUE(a.ParseFromString(before));
  ASSERT_TRUE(b.ParseFromString(after));
  EXPECT_EQ(b.graph().initializer(0).doc_string(), "kept");
  a.mutable_graph()->mutable_initializer(0)->Clear();
  b.mutable_graph()->mutable_initializer(0)->Clear();
  EXPECT_EQ(a.SerializeAsString(), b.SerializeAsString());
  EXPECT_TRUE(after.ends_with("xyz"));
}

TEST(WithWeights, RefusesWhatDoesNotFit) {
  const std::string before = model_bytes();
  auto refuse = [&](const std::map<std::string, Tensor>& weights) {
    try {
      with_weights(as_span(before), weights);
    } catch (const ModelError& e) {
      return e.parts();
    }
    ADD_FAILURE() << "nothing was thrown";
    return ErrorParts{};
  };
  EXPECT_EQ(refuse({{"nope", Tensor::from<float>({1}, {1})}}).node, "nope");
  EXPECT_EQ(refuse({{"h", Tensor::from<float>({1}, {1})}}).node, "h");
  const ErrorParts shape = refuse({{"b", Tensor::from<float>({1, 2, 3}, {3})}});
  EXPECT_EQ(shape.expected, "float32[2]");
  EXPECT_EQ(shape.received, "float32[3]");
  EXPECT_EQ(refuse({{"b", Tensor::from<double>({1, 2}, {2})}}).received, "float64[2]");
}

TEST(WithWeights, ExternalDataIsBroughtIn) {
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "steep-XXXXXX").string();
  const fs::path folder = mkdtemp(name.data());
  const float values[] = {1, 2, 3, 4};
  std::ofstream(folder / "w.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(values), 16);
  onnx::ModelProto m;
  ASSERT_TRUE(m.ParseFromString(model_bytes()));
  onnx::TensorProto* w = m.mutable_graph()->mutable_initializer(0);
  w->clear_float_data();
  w->clear_raw_data();
  w->set_data_location(onnx::TensorProto::EXTERNAL);
  auto* entry = w->add_external_data();
  entry->set_key("location");
  entry->set_value("w.bin");
  const std::string before = to_bytes(m);
  const Tensor b = Tensor::from<float>({0, 0}, {2});

  const ImportedModel inside =
      testing::import_bytes(with_weights(as_span(before), {{"b", b}}, folder));
  EXPECT_EQ(inside.graph.find("w").tensor()->data<float>()[3], 4);
  const std::string beside = with_weights(as_span(before), {{"b", b}});
  EXPECT_THROW(testing::import_bytes(beside), ModelError);
  EXPECT_EQ(testing::import_bytes(beside, {}, folder).graph.find("w").tensor()->data<float>()[3],
            4);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace steep
