// External data that must be refused: everything that is, or may be, outside the model's folder.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "errors/refused.h"

namespace steep {
namespace {

namespace fs = std::filesystem;
using testing::has;
using testing::import_bytes;
using testing::parse_text;
using testing::refused;
using testing::small;
using testing::to_bytes;
using testing::weight;

/// root/secret.bin, root/model/{w.bin, sub/w.bin}
class ExternalDataTest : public ::testing::Test {
 protected:
  ExternalDataTest() {
    std::string name = (fs::temp_directory_path() / "steep-XXXXXX").string();
    root_ = mkdtemp(name.data());
    folder_ = root_ / "model";
    fs::create_directories(folder_ / "sub");
    write(root_ / "secret.bin");
    write(folder_ / "w.bin");
    write(folder_ / "sub" / "w.bin");
  }
  ~ExternalDataTest() override { fs::remove_all(root_); }

  static void write(const fs::path& path) {
    const float values[] = {1, 2, 3, 4, 5, 6};
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(values), sizeof values);
  }

  static void make_external(onnx::TensorProto* t, const std::string& location,
                            const std::string& offset = "", const std::string& length = "") {
    t->clear_float_data();
    t->clear_raw_data();
    t->set_data_location(onnx::TensorProto::EXTERNAL);
    auto add = [&](const char* key, const std::string& value) {
      if (value.empty()) return;
      auto* entry = t->add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    };
    add("location", location);
    add("offset", offset);
    add("length", length);
  }

  std::string model(const std::string& location, const std::string& offset = "",
                    const std::string& length = "") const {
    onnx::ModelProto m = small();
    make_external(weight(m), location, offset, length);
    return to_bytes(m);
  }

  ImportedModel import(const std::string& bytes) const { return import_bytes(bytes, {}, folder_); }
  ErrorParts refuse(const std::string& bytes) const {
    return refused([&] { import(bytes); });
  }

  fs::path root_;
  fs::path folder_;
};

TEST_F(ExternalDataTest, OwnFilesAreRead) {
  for (const char* location : {"w.bin", "./w.bin", "sub/w.bin", "sub//w.bin"}) {
    const ImportedModel m = import(model(location, "0", "24"));
    EXPECT_EQ(m.graph.find("w").tensor()->data<float>()[5], 6) << location;
  }
  std::ofstream(folder_ / "m.onnx", std::ios::binary) << model("w.bin");
  EXPECT_EQ(import_model(folder_ / "m.onnx").graph.find("w").tensor()->data<float>()[5], 6);
}

TEST_F(ExternalDataTest, PathsThatLeaveTheFolder) {
  const std::string sibling = "../model-evil/w.bin";
  fs::create_directories(root_ / "model-evil");
  write(root_ / "model-evil" / "w.bin");
  for (const std::string& location :
       {std::string("../secret.bin"), std::string("sub/../../secret.bin"),
        std::string("a/../w.bin"), (root_ / "secret.bin").string(), sibling,
        std::string("w.bin\0x", 7), std::string("."), std::string("/"),
        std::string("*/_ORT_MEM_ADDR_/*"), std::string("missing.bin"), std::string("sub")}) {
    const ErrorParts e = refuse(model(location));
    EXPECT_EQ(e.node, "w") << location;
    EXPECT_TRUE(has(e.what, "external data")) << e.what;
    EXPECT_FALSE(e.remedy.empty());
  }
}

TEST_F(ExternalDataTest, Links) {
  fs::create_symlink(root_ / "secret.bin", folder_ / "link.bin");
  fs::create_symlink(folder_ / "w.bin", folder_ / "inside.bin");
  fs::create_directory_symlink(root_, folder_ / "up");
  fs::create_hard_link(root_ / "secret.bin", folder_ / "hard.bin");
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  for (const char* location : {"link.bin", "inside.bin", "up/secret.bin", "hard.bin", "fifo"}) {
    EXPECT_EQ(refuse(model(location)).node, "w") << location;
  }
}

TEST_F(ExternalDataTest, EveryTensorSourcePassesTheSameDoor) {
  onnx::ModelProto constant = parse_text(R"(<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[2] x) => (float[2] y) { c = Constant <value = float[2] {1, 2}> ()  y = Add(x, c) })");
  make_external(constant.mutable_graph()->mutable_node(0)->mutable_attribute(0)->mutable_t(),
                "../secret.bin");
  EXPECT_EQ(refuse(to_bytes(constant)).node, "c");

  onnx::ModelProto function = parse_text(R"(<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[2] x) => (float[2] y) { y = own.f(x) }
    <opset_import: ["" : 17], domain: "own">
    f (a) => (b) { c = Constant <value = float[2] {1, 2}> ()  b = Add(a, c) })");
  make_external(function.mutable_functions(0)->mutable_node(0)->mutable_attribute(0)->mutable_t(),
                "../secret.bin");
  EXPECT_EQ(refuse(to_bytes(function)).node, "c");

  onnx::ModelProto branch = parse_text(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) <bool k = {1}> {
      y = If (k) < then_branch = t () => (float[2] a) <float[2] inner = {1, 2}> { a = Add(x, inner) },
                   else_branch = e () => (float[2] b) { b = Tanh(x) }> })");
  auto* attribute = branch.mutable_graph()->mutable_node(0)->mutable_attribute(0);
  make_external(attribute->mutable_g()->mutable_initializer(0), "../secret.bin");
  EXPECT_EQ(refuse(to_bytes(branch)).node, "inner");
}

TEST_F(ExternalDataTest, OffsetsAndLengths) {
  for (const auto& [offset, length] :
       std::vector<std::pair<std::string, std::string>>{{"1", ""},
                                                        {"25", ""},
                                                        {"9223372036854775807", ""},
                                                        {"-1", ""},
                                                        {"0x0", ""},
                                                        {"0", "23"},
                                                        {"0", "25"},
                                                        {"0", "-24"},
                                                        {"99999999999999999999", ""}}) {
    EXPECT_EQ(refuse(model("w.bin", offset, length)).node, "w") << offset << " " << length;
  }
  onnx::ModelProto huge = small();  // a file of 24 bytes claims 4 GiB
  weight(huge)->clear_dims();
  weight(huge)->add_dims(int64_t{1} << 30);
  make_external(weight(huge), "w.bin");
  EXPECT_TRUE(has(refuse(to_bytes(huge)).received, "24 bytes"));
}

TEST_F(ExternalDataTest, BytesWithoutFolder) {
  EXPECT_TRUE(has(refused([&] { import_bytes(model("w.bin")); }).remedy, "folder"));
}

}  // namespace
}  // namespace steep
