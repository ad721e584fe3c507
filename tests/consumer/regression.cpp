// Trains y = x w + z in C++17, by forward and backward apart:
//   regression linear.onnx
// Three batches make one step. Their runs wait for their backward, which two threads call.
#include <steep_c.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>

namespace {

/// Calls a function of the library; an error becomes an exception.
template <typename Function, typename... Arguments>
void call(Function function, Arguments... arguments) {
  steep_error* error = nullptr;
  if (function(arguments..., &error) == STEEP_OK) return;
  const std::runtime_error thrown(steep_error_message(error));
  steep_error_free(error);
  throw thrown;
}

/// Frees an object of the library.
struct Free {
  void operator()(steep_options* options) const { steep_options_free(options); }
  void operator()(steep_gradients* session) const { steep_gradients_free(session); }
  void operator()(steep_run* run) const { steep_run_free(run); }
  void operator()(steep_tensors* tensors) const { steep_tensors_free(tensors); }
};
template <typename T>
using Handle = std::unique_ptr<T, Free>;

constexpr int kRows = 4, kInputs = 3, kParts = 3;
constexpr std::array<float, kInputs> kWeights{1, -2, 3};
constexpr float kBias = 0.5F;

struct Gradients {
  std::array<float, kInputs> w{};
  float z = 0;
};

const float* floats(const Handle<steep_tensors>& tensors, const char* name) {
  steep_array array;
  call(steep_tensors_find, tensors.get(), name, &array);
  return static_cast<const float*>(array.data);
}

Handle<steep_gradients> open(const char* path) {
  steep_options* options = nullptr;
  call(steep_options_new, STEEP_OPTIONS_GRADIENTS, &options);
  const Handle<steep_options> owner(options);
  for (const char* name : {"w", "z"}) call(steep_options_add, options, "wrt", name);
  steep_gradients* session = nullptr;
  call(steep_gradients_open, path, static_cast<const steep_options*>(options), &session);
  return Handle<steep_gradients>(session);
}

/// A batch whose forward has run.
struct Part {
  Handle<steep_tensors> outputs{};
  Handle<steep_run> run{};
  std::array<float, kRows> wanted{};

  Part(steep_gradients* session, std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::array<float, kRows * kInputs> x{};  // backward reads a copy
    for (int i = 0; i < kRows * kInputs; ++i) {
      x[i] = uniform(random);
      wanted[i / kInputs] += x[i] * kWeights[i % kInputs];
    }
    for (float& y : wanted) y += kBias;
    const std::array<int64_t, 2> dims{kRows, kInputs};
    const steep_array input{"x", STEEP_DTYPE_FLOAT32, 2, dims.data(), x.data(), sizeof x};
    steep_tensors* tensors = nullptr;
    steep_run* waiting = nullptr;
    call(steep_gradients_forward, session, &input, size_t{1}, &tensors, &waiting);
    outputs.reset(tensors);
    run.reset(waiting);
  }

  /// Adds the gradients of the mean of squares over all parts.
  void backward(steep_gradients* session, Gradients* sum) const {
    std::array<float, kRows> slope{};
    for (int i = 0; i < kRows; ++i)
      slope[i] = 2 * (floats(outputs, "y")[i] - wanted[i]) / (kRows * kParts);
    const std::array<int64_t, 2> dims{kRows, 1};
    const steep_array dy{"y", STEEP_DTYPE_FLOAT32, 2, dims.data(), slope.data(), sizeof slope};
    steep_tensors* tensors = nullptr;
    call(steep_gradients_backward, session, run.get(), &dy, size_t{1}, &tensors);
    const Handle<steep_tensors> gradients(tensors);
    for (int i = 0; i < kInputs; ++i) sum->w[i] += floats(gradients, "w")[i];
    sum->z += *floats(gradients, "z");
  }
};

void train(const char* path) {
  const Handle<steep_gradients> session = open(path);
  std::mt19937 random(1);
  std::array<float, kInputs> w{};
  float z = 0;
  for (int step = 0; step < 300; ++step) {
    const std::array<Part, kParts> parts{Part(session.get(), random), Part(session.get(), random),
                                         Part(session.get(), random)};
    Gradients one, other;
    std::thread thread([&] { parts[2].backward(session.get(), &other); });
    parts[1].backward(session.get(), &one);  // in any order
    parts[0].backward(session.get(), &one);
    thread.join();
    for (int i = 0; i < kInputs; ++i) w[i] -= 0.3F * (one.w[i] + other.w[i]);
    z -= 0.3F * (one.z + other.z);
    const std::array<int64_t, 2> dims{kInputs, 1};
    const std::array<steep_array, 2> weights{
        steep_array{"w", STEEP_DTYPE_FLOAT32, 2, dims.data(), w.data(), sizeof w},
        steep_array{"z", STEEP_DTYPE_FLOAT32, 1, &dims[1], &z, sizeof z}};
    call(steep_gradients_set_weights, session.get(), weights.data(), weights.size());
  }
  std::printf("w = %.3f %.3f %.3f, z = %.3f\n", w[0], w[1], w[2], z);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    train(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
