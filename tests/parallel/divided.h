// A model of odd sizes, rows for each process, and the states that processes have divided.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "steep/data.h"
#include "steep/tensor.h"
#include "train/models.h"

namespace steep::testing {

using Weights = std::map<std::string, Tensor>;

/// Uneven shares: the last ranks may have no rows.
inline std::vector<Tensor> share(const std::vector<Tensor>& all, int rank, int size) {
  const int64_t rows = all[0].dims()[0];
  const auto begin_of = [&](int r) { return r == 0 ? 0 : std::min<int64_t>(rows, 2 + r); };
  const int64_t end = rank + 1 == size ? rows : begin_of(rank + 1);
  std::vector<Tensor> own;
  for (const Tensor& array : all) own.push_back(steep::rows(array, begin_of(rank), end));
  return own;
}

inline void expect_near(const Weights& one, const Weights& other) {
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, tensor] : one) {
    for (int64_t i = 0; i < tensor.size(); ++i) {
      ASSERT_NEAR(tensor.data<float>()[i], other.at(name).data<float>()[i], 1e-6) << name;
    }
  }
}

/// Five matrices of odd sizes, and more processes than that in the tests. w0 is larger than the
/// least moments that are kept in fewer bits.
inline std::string matrices_bytes(int hidden = 7) {
  const auto values = [](int count, int seed) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(std::sin(0.7 * i + seed) * 0.4);
    }
    return text;
  };
  const std::string h = std::to_string(hidden);
  return model_bytes("g (float[rows, 3] x) => (float[rows, 4] logits) <float[3, " + h + "] w0 = {" +
                     values(3 * hidden, 1) + "}, float[" + h + ", 5] w1 = {" +
                     values(5 * hidden, 2) + "}, float[5, 1] w2 = {" + values(5, 3) +
                     "}, float[5, 9] w3 = {" + values(45, 4) + "}, float[9, 4] w4 = {" +
                     values(36, 5) + R"(}>
    { a = MatMul(x, w0)  b = Tanh(a)  c = MatMul(b, w1)  d = Tanh(c)  e = MatMul(d, w2)
      f = Mul(d, e)  g0 = MatMul(f, w3)  h = Tanh(g0)  logits = MatMul(h, w4) })");
}

class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "steep-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no folder");
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// The moments of all processes, each of which is kept once.
class Moments {
 public:
  void add(const Weights& own) {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, tensor] : own) {
      EXPECT_TRUE(all_.emplace(name, tensor.clone()).second || name.starts_with("step/")) << name;
    }
  }
  const Weights& all() const { return all_; }

 private:
  std::mutex mutex_;
  Weights all_;
};

}  // namespace steep::testing
