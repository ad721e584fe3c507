// libFuzzer's hooks for the targets whose input is a model.
#include <onnx/onnx_pb.h>

#include <cstddef>
#include <cstdint>
#include <random>

#include "mutate_model.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

/// The new size; 0 when it does not fit.
size_t write(const onnx::ModelProto& model, uint8_t* out, size_t max_size) {
  const size_t size = model.ByteSizeLong();
  if (size > max_size || !model.SerializeToArray(out, static_cast<int>(size))) return 0;
  return size;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  std::mt19937_64 random(seed);
  onnx::ModelProto model;
  if (random() % 16 != 0 && model.ParseFromArray(data, static_cast<int>(size))) {
    for (uint64_t n = 1 + random() % 3; n > 0; --n) steep::fuzz::mutate_model(model, random);
    if (const size_t made = write(model, data, max_size)) return made;
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* a, size_t a_size, const uint8_t* b,
                                            size_t b_size, uint8_t* out, size_t max_size,
                                            unsigned seed) {
  std::mt19937_64 random(seed);
  onnx::ModelProto into;
  onnx::ModelProto from;
  if (!into.ParseFromArray(a, static_cast<int>(a_size)) ||
      !from.ParseFromArray(b, static_cast<int>(b_size))) {
    return 0;
  }
  steep::fuzz::join_models(into, from, random);
  return write(into, out, max_size);
}
