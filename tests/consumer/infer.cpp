// Runs a trained classifier from C++17: infer MODEL. Handles in smart pointers, codes as exceptions.
#include <steep_c.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

/// Throws what a call reports. A reference: arguments are evaluated in any order, and the call, which
/// is one of them, sets the error.
void check(steep_code code, steep_error*& error) {
  if (code == STEEP_OK) return;
  const std::string message = steep_error_message(error);
  steep_error_free(error);
  error = nullptr;
  throw std::runtime_error(std::string(steep_code_name(code)) + ": " + message);
}

struct Free {
  void operator()(steep_inference* session) const { steep_inference_free(session); }
  void operator()(steep_tensors* tensors) const { steep_tensors_free(tensors); }
  void operator()(steep_options* options) const { steep_options_free(options); }
  void operator()(steep_bytes* bytes) const { steep_bytes_free(bytes); }
};
template <typename T>
using Handle = std::unique_ptr<T, Free>;

Handle<steep_inference> open(const char* path) {
  steep_inference* session = nullptr;
  steep_error* error = nullptr;
  check(steep_inference_open(path, nullptr, &session, &error), error);
  return Handle<steep_inference>(session);
}

/// Of the gradients of logits with respect to x, as a model.
Handle<steep_inference> gradients(const char* path) {
  steep_error* error = nullptr;
  steep_options* made = nullptr;
  check(steep_options_new(STEEP_OPTIONS_GRADIENT, &made, &error), error);
  const Handle<steep_options> options(made);
  check(steep_options_add(options.get(), "wrt", "x", &error), error);
  steep_bytes* bytes = nullptr;
  check(steep_gradient_model(path, options.get(), &bytes, &error), error);
  const Handle<steep_bytes> model(bytes);
  steep_inference* session = nullptr;
  check(steep_inference_open_bytes(steep_bytes_data(bytes), steep_bytes_size(bytes), nullptr,
                                   nullptr, &session, &error),
        error);
  return Handle<steep_inference>(session);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const Handle<steep_inference> session = open(argv[1]);
  std::vector<float> x(64, 0.5F);
  const int64_t dims[] = {1, 64};
  const steep_array input = {"x", STEEP_DTYPE_FLOAT32, 2, dims, x.data(), x.size() * sizeof(float)};
  steep_error* error = nullptr;
  steep_tensors* outputs = nullptr;
  check(steep_inference_run(session.get(), &input, 1, nullptr, 0, &outputs, &error), error);
  const Handle<steep_tensors> results(outputs);
  steep_array logits;
  check(steep_tensors_find(outputs, "logits", &logits, &error), error);
  const auto* values = static_cast<const float*>(logits.data);
  for (int i = 0; i < 10; ++i) std::printf("%.4f ", values[i]);
  std::printf("\n");

  const Handle<steep_inference> slopes = gradients(argv[1]);
  const steep_value* inputs = nullptr;
  size_t count = 0;
  check(steep_inference_inputs(slopes.get(), &inputs, &count, &error), error);
  for (size_t i = 0; i < count; ++i) std::printf("%s ", inputs[i].name);
  std::printf("\n");
  try {
    open("there/is/no.onnx");
  } catch (const std::runtime_error& expected) {
    std::printf("%s\n", expected.what());
    return 0;
  }
  return 1;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 2;
}
