#include "sessions/state_file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "runtime/disk.h"
#include "steep/error.h"

namespace steep {
namespace {

TEST(StateFile, TensorsKeepTheirValuesAndStayAligned) {
  std::vector<float> ramp(40'000, 0);  // zeros, and values on both sides of a block's border
  for (size_t i = 16'000; i < 17'000; ++i) ramp[i] = static_cast<float>(i);
  Tensor a = Tensor::from(ramp, {40'000}), b = Tensor::from<int8_t>({1, 2, 3}, {3}),
         none = Tensor::zeros(DType::f32, {0, 4}), c = Tensor::scalar(2.5);
  Tensor* const all[] = {&a, &b, &none, &c};
  move_to_file(all, std::filesystem::temp_directory_path());
  EXPECT_EQ(std::vector<float>(a.data<float>(), a.data<float>() + a.size()), ramp);
  EXPECT_EQ(b.data<int8_t>()[2], 3);
  EXPECT_EQ(none.dims(), (Dims{0, 4}));
  EXPECT_EQ(*c.data<double>(), 2.5);
  for (const Tensor* t : {&a, &b, &c}) EXPECT_EQ(reinterpret_cast<uintptr_t>(t->data()) % 64, 0U);
  EXPECT_EQ(a.owner(), c.owner());
}

TEST(StateFile, NothingToMoveNeedsNoFolder) {
  Tensor none = Tensor::zeros(DType::f32, {0});
  Tensor* const all[] = {&none};
  EXPECT_NO_THROW(move_to_file(all, "/no/such/folder"));
}

TEST(StateFile, AFullDiskIsAnErrorWithFigures) {
  Tensor a = Tensor::scalar(2.5);
  Tensor* const all[] = {&a};
  set_fault_hook([](const DiskCall& call) { return call.name == "reserve" ? ENOSPC : 0; });
  try {
    move_to_file(all, std::filesystem::temp_directory_path());
    ADD_FAILURE() << "no error";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("64 bytes"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("free"), std::string::npos);
  }
  set_fault_hook(nullptr);
  EXPECT_EQ(*a.data<double>(), 2.5);
}

}  // namespace
}  // namespace steep
