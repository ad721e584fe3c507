// Any bytes read as a model are refused with a steep::Error, or can be trained: forward, gradients,
// a step, a checkpoint, and the next step again after loading, with identical bits. The number of
// bytes selects loss and precision. Allocations above 64 MiB fail, so that executions stay fast and
// the handling of failures is tested, too.

#include <fmt/format.h>
#include <omp.h>
#include <unistd.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "runtime/memory.h"
#include "steep/error.h"
#include "steep/steep.h"

namespace {

using namespace steep;

constexpr size_t kMaxBlock = size_t{64} << 20;
constexpr int64_t kMaxElements = 1 << 12;  // of one input

TrainingOptions options_for(size_t size) {
  constexpr const char* kLosses[] = {"mse", "softmax_cross_entropy", "", ""};
  constexpr const char* kPrecisions[] = {"bf16", "fp16", "fp32", "fp32"};
  TrainingOptions options{
      .loss = kLosses[size % 4],
      .optimizer = {.kind = size % 3 == 0 ? "sgd" : "adamw", .momentum = 0.5},
      .clip_norm = size % 5 == 0 ? 1.0 : 0.0,
      .precision = kPrecisions[size / 4 % 4],
      .check_finite = size % 7 == 0,
      .limits = {.max_bytes = kMaxBlock, .max_nodes = 1000, .max_iterations = 1000}};
  if (options.optimizer.kind == "adamw") options.optimizer.momentum = 0;
  return options;
}

/// Numbers that fit most operators: fractions, small integers. Nothing when the value would be
/// large.
std::optional<Tensor> value_for(const TensorInfo& info, std::mt19937& random) {
  Dims dims = info.dims;
  for (int64_t& d : dims) {
    if (d < 0) d = 2;
  }
  const Tensor shell = Tensor::wrap(info.dtype, dims, nullptr, nullptr);
  if (info.sequence || shell.size() > kMaxElements) return std::nullopt;
  Tensor t = Tensor::zeros(info.dtype, dims);
  for (int64_t i = 0; i < t.size(); ++i) {
    const auto small = static_cast<int>(random() % 3);
    switch (info.dtype) {
      case DType::f32: t.data<float>()[i] = static_cast<float>(random() % 512) / 256 - 1; break;
      case DType::f64: t.data<double>()[i] = static_cast<double>(random() % 512) / 256 - 1; break;
      case DType::i64: t.data<int64_t>()[i] = small; break;
      case DType::i32: t.data<int32_t>()[i] = small; break;
      case DType::boolean: t.data<uint8_t>()[i] = static_cast<uint8_t>(small % 2); break;
      default: break;
    }
  }
  return t;
}

/// The loss; nothing when the step is refused.
std::optional<uint64_t> try_step(TrainingSession& session, std::span<const Tensor> inputs) {
  try {
    return std::bit_cast<uint64_t>(session.step(inputs).loss);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

void train(std::span<const std::byte> model, const std::filesystem::path& folder) {
  TrainingSession session(model, options_for(model.size()));
  std::mt19937 random(1);
  std::vector<Tensor> inputs;
  for (const TensorInfo& info : session.input_info()) {
    const std::optional<Tensor> value = value_for(info, random);
    if (!value) return;
    inputs.push_back(*value);
  }
  session.eval(inputs);
  session.gradients(inputs);
  try_step(session, inputs);
  session.save_checkpoint(folder);
  const std::optional<uint64_t> loss = try_step(session, inputs);
  session.load_checkpoint(folder);
  if (try_step(session, inputs) != loss) {
    fmt::print(stderr,
               "the step after loading a checkpoint differs from the one after saving it\n");
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  omp_set_num_threads(1);
  set_allocation_hook([](size_t bytes) { return bytes <= kMaxBlock; });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path folder = [] {
    const std::filesystem::path memory = "/dev/shm";
    return (std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path()) /
           fmt::format("steep-fuzz-{}", getpid());
  }();
  try {
    train(std::as_bytes(std::span(data, size)), folder);
  } catch (const InternalError& error) {
    fmt::print(stderr, "{}\n", error.what());
    std::abort();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the expected refusal
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return 0;
}
