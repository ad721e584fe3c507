// Shared by the tests of refused models.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "model/onnx_text.h"
#include "steep/error.h"

namespace steep::testing {

/// The parts of the ModelError that `f` throws; fails the test otherwise.
inline ErrorParts refused(const std::function<void()>& f) {
  try {
    f();
  } catch (const ModelError& e) {
    EXPECT_FALSE(e.parts().what.empty());
    return e.parts();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another error: " << e.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline onnx::ModelProto small() {
  return parse_text(R"(<ir_version: 8, opset_import: ["" : 17]>
  g (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) })");
}

inline onnx::TensorProto* weight(onnx::ModelProto& m) {
  return m.mutable_graph()->mutable_initializer(0);
}

}  // namespace steep::testing
