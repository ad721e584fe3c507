// A new folder for each test, removed afterwards.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "steep/tensor.h"

namespace steep::testing {

class TempFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (root() / "steep.XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  const std::filesystem::path& folder() const { return folder_; }
  virtual std::filesystem::path root() const { return std::filesystem::temp_directory_path(); }

 private:
  std::filesystem::path folder_;
};

/// A folder in memory where there is such a file system: for thousands of saves, each with fsync.
class MemoryFolder : public TempFolder {
 protected:
  std::filesystem::path root() const override {
    const bool there = ::access("/dev/shm", W_OK | X_OK) == 0;
    return there ? std::filesystem::path("/dev/shm") : TempFolder::root();
  }
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Whether dtype, extents and bits are equal.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.dims() == b.dims() &&
         (a.nbytes() == 0 || std::memcmp(a.data(), b.data(), a.nbytes()) == 0);
}

}  // namespace steep::testing
