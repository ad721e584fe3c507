// Small models to train, in ONNX's text form, and their data.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "model/onnx_text.h"
#include "steep/steep.h"

namespace steep::testing {

inline std::string model_bytes(const std::string& body, int opset = 17) {
  return to_bytes(
      parse_text("<ir_version: 8, opset_import: [\"\" : " + std::to_string(opset) + "]> " + body));
}

/// y = x·weight + bias, from 2 features to 1.
inline std::string linear_bytes() {
  return model_bytes(R"(g (float[rows, 2] x) => (float[rows, 1] y)
    <float[2, 1] weight = {0.5, -0.25}, float[1] bias = {0.125}>
    { p = MatMul(x, weight)  y = Add(p, bias) })");
}

/// logits = relu(x·w0 + b0)·w1 + b1, from 3 features to 4 classes, with dropout while training.
inline std::string mlp_bytes(bool dropout) {
  const std::string middle = dropout ? "d = Dropout(a, ratio, training)" : "d = Identity(a)";
  const std::string settings = dropout ? ", float ratio = {0.3}, bool training = {1}" : "";
  return model_bytes(R"(g (float[rows, 3] x) => (float[rows, 4] logits)
    <float[3, 5] w0 = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6, 0.7, -0.8, 0.9, 0.15, -0.25, 0.35, 0.45, 0.55, 0.65},
     float[5] b0 = {0.1, 0.2, 0.3, 0.4, 0.5},
     float[5, 4] w1 = {0.2, -0.1, 0.4, 0.3, 0.6, -0.5, 0.8, -0.7, 0.15, 0.95, 0.25, -0.35,
                       0.45, 0.5, -0.65, 0.7, 0.1, 0.3, 0.2, -0.4},
     float[4] b1 = {0.0, 0.1, 0.2, 0.3})" +
                     settings + R"(>
    { h = MatMul(x, w0)  s = Add(h, b0)  a = Relu(s) )" +
                     middle + R"(  m = MatMul(d, w1)  logits = Add(m, b1) })");
}

inline Tensor random_tensor(Dims dims, unsigned seed) {
  Tensor t = Tensor::empty(DType::f32, std::move(dims));
  std::mt19937 random(seed);
  for (int64_t i = 0; i < t.size(); ++i) {
    t.data<float>()[i] = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  }
  return t;
}

inline Tensor random_labels(int64_t rows, int64_t classes, unsigned seed) {
  Tensor t = Tensor::empty(DType::i64, {rows});
  std::mt19937 random(seed);
  for (int64_t i = 0; i < rows; ++i) {
    t.data<int64_t>()[i] = static_cast<int64_t>(random() % static_cast<unsigned>(classes));
  }
  return t;
}

inline TrainingSession session_of(const std::string& bytes, TrainingOptions options) {
  return TrainingSession(as_span(bytes), std::move(options));
}

inline bool same_tensors(const std::map<std::string, Tensor>& a,
                         const std::map<std::string, Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.nbytes() != tensor.nbytes()) return false;
    if (std::memcmp(found->second.data(), tensor.data(), tensor.nbytes()) != 0) return false;
  }
  return true;
}

}  // namespace steep::testing
