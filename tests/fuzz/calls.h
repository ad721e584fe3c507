// Converts the bytes of one fuzzer input to calls of the C API: numbers select calls and handles.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "steep_c.h"

namespace steep::fuzz {

constexpr size_t kMaxBlock = size_t{64} << 20;
constexpr size_t kMaxCalls = 60;  // per input
constexpr size_t kMaxLive = 8;    // handles of one kind

/// The folder of this process, for files.
std::filesystem::path folder();
/// The serialised model x [rows, 4] · w → y [rows, 3], with a copy of x as `same`.
const std::string& model_of_all();

enum Kind : uint8_t {
  kError,
  kOptions,
  kTraining,
  kInference,
  kGradients,
  kRun,
  kTensors,
  kBytes,
  kStrings,
  kReport,
  kMemory,
  kData,
  kBatches,
  kPeers,
  kParallel,
  kKinds
};

/// Frees the handle with the function of its kind.
steep_code free_handle(Kind kind, void* handle);

/// The state of one fuzzer input: its bytes, and the handles so far.
class Caller {
 public:
  Caller(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  ~Caller() {
    for (size_t kind = 0; kind < kKinds; ++kind) {
      while (!live_[kind].empty()) free_last(static_cast<Kind>(kind));
    }
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  /// Opens handles that most calls need.
  void set_up();
  bool done() const { return at_ >= size_ || calls_ >= kMaxCalls; }
  void call();

 private:
  size_t pick(size_t count) { return at_ < size_ ? data_[at_++] % count : 0; }
  bool one_in(size_t count) { return pick(count) == 1; }

  template <typename T>
  T of(const std::vector<T>& values) {
    return values[pick(values.size())];
  }

  template <typename H>
  H* handle(Kind kind) {
    const size_t how = pick(8);
    if (how > 1 && !live_[kind].empty()) return static_cast<H*>(of(live_[kind]));
    if (how == 1 && !gone_.empty()) return static_cast<H*>(of(gone_));
    const auto& others = live_[pick(kKinds)];
    if (how > 4 && !others.empty()) return static_cast<H*>(others.back());
    static char block[64];
    const std::vector<void*> odd = {nullptr, reinterpret_cast<void*>(16), block, block + 1,
                                    reinterpret_cast<void*>(-1)};
    return static_cast<H*>(of(odd));
  }

  const char* text();
  const char* path() {
    static const std::string model = (folder() / "model.onnx").string();
    return one_in(8) ? text() : model.c_str();
  }
  const char* key() {
    static const std::vector<const char*> keys = {
        "loss",     "output",      "label",         "optimizer",    "precision",
        "lr",       "momentum",    "epsilon",       "attributes.x", "wrt",
        "outputs",  "clip_norm",   "trainable",     "frozen",       "step_outputs",
        "threads",  "seed",        "max_bytes",     "max_nodes",    "loss_scale",
        "schedule", "total_steps", "for_inference", "batch_size",   "drop_last"};
    return one_in(16) ? text() : of(keys);
  }
  std::vector<const char*> texts() {
    std::vector<const char*> all(pick(4));
    for (const char*& one : all) one = text();
    return all;
  }
  double number() {
    return of(std::vector<double>{0, 0.1, 1, -1, 1e-3, 1e300, 0.0 / 0.0, 1.0 / 0.0});
  }
  int64_t integer() { return of(std::vector<int64_t>{0, 1, 2, 5, -1, 100, INT64_MAX, INT64_MIN}); }

  /// Arrays, about half of which fit the names.
  std::vector<steep_array> arrays(const std::vector<const char*>& names);
  template <typename T>
  T* result(T& place) {
    return one_in(16) ? nullptr : &place;
  }

  /// Checks that code and error agree.
  void look(const char* function, steep_code code);
  /// The error argument of a call; sometimes null.
  steep_error** error() {
    with_error_ = !one_in(8);
    error_ = reinterpret_cast<steep_error*>(0xBAD);
    return with_error_ ? &error_ : nullptr;
  }
  template <typename H>
  void keep(Kind kind, steep_code code, H* made) {
    if (code != STEEP_OK || made == nullptr) return;
    live_[kind].push_back(made);
    if (live_[kind].size() > kMaxLive) free_first(kind);
  }
  void free_last(Kind kind);
  void free_first(Kind kind);
  steep_options* fitting(int32_t kind);
  void set_options();
  void open();
  void train();
  void train_settings();
  void infer();
  void values();
  void batches();
  void peers();
  void train_in_ranks();
  void gradients();
  void read();
  void models();
  void release();

  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
  size_t calls_ = 0;
  std::array<std::vector<void*>, kKinds> live_;
  std::vector<void*> gone_;
  steep_error* error_ = nullptr;
  bool with_error_ = false;
  std::vector<float> data_of_arrays_ = std::vector<float>(64, 0.5F);
  std::deque<std::array<int64_t, 2>> dims_;  // of arrays
};

}  // namespace steep::fuzz
