// Writing models with external data: after a failure the previous files are intact.
#include "model/export/detached.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "runtime/disk.h"
#include "steep/error.h"
#include "train/models.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

namespace fs = std::filesystem;

class Detached : public testing::MemoryFolder {
 protected:
  void TearDown() override {
    set_fault_hook(nullptr);
    MemoryFolder::TearDown();
  }
  /// y = x·w of 16×32 numbers, all of them `value`.
  void write(float value, const ExportOptions& options) const {
    static const std::string model = testing::model_bytes(
        "g (float[n, 16] x, float[16, 32] given) => (float[n, 32] y) { y = MatMul(x, w) }");
    onnx::ModelProto proto;
    ASSERT_TRUE(proto.ParseFromString(model));
    auto* w = proto.mutable_graph()->add_initializer();
    w->set_name("w");
    w->set_data_type(1);
    w->add_dims(16);
    w->add_dims(32);
    w->set_raw_data(std::string(std::size_t{16} * 32 * 4, '\0'));
    const std::string bytes = testing::to_bytes(proto);
    const Tensor data = Tensor::from(std::vector<float>(512, value), {16, 32});
    DetachedModel(testing::as_span(bytes), {{"w", data}}, {}).write(target(), options);
  }
  fs::path target() const { return folder() / "m.onnx"; }
  float read() const { return import_model(target()).graph.find("w").tensor()->data<float>()[511]; }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder()))
      names.insert(entry.path().filename().string());
    return names;
  }
};

TEST_F(Detached, AFailureAtAnyCallLeavesTheOldPairWhole) {
  const ExportOptions beside{.external_data = true};
  write(1, beside);
  EXPECT_EQ(files(), (std::set<std::string>{"m.onnx", "m.onnx.data"}));
  float value = 1;
  for (int at = 0, calls = at + 1; at < calls; ++at) {
    calls = 0;
    set_fault_hook(
        [&](const DiskCall& call) { return calls++ == at && call.name != "unlink" ? ENOSPC : 0; });
    bool failed = false;
    try {
      write(value + 1, beside);
    } catch (const IoError& error) {
      failed = true;
      // If the last call fails, the new pair is in place, but its folder could not be synced.
      if (error.parts().what.find("in place") != std::string::npos && read() != value) ++value;
    }
    set_fault_hook(nullptr);
    if (!failed) ++value;
    EXPECT_EQ(read(), value) << "call " << at << " of " << calls;
  }
  write(value + 1, beside);
  EXPECT_EQ(read(), value + 1);
  EXPECT_LE(files().size(), 3u);  // a file that could not be removed may remain
}

TEST_F(Detached, DataGoesBesideWhereTheFileWouldBeTooLarge) {
  write(3, {.max_file_bytes = 1 << 20});
  EXPECT_EQ(files(), std::set<std::string>{"m.onnx"});
  write(4, {.max_file_bytes = 1024});
  EXPECT_EQ(files(), (std::set<std::string>{"m.onnx", "m.onnx.data"}));
  EXPECT_EQ(read(), 4);
  EXPECT_LT(fs::file_size(target()), 1024u);
  write(5, {});  // data inside again: nothing refers to the other file
  EXPECT_EQ(files(), std::set<std::string>{"m.onnx"});
  EXPECT_EQ(read(), 5);
}

}  // namespace
}  // namespace steep
