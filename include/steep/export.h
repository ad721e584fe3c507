// Trained models, written for inference.
#pragma once

#include <climits>
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>

namespace steep {

/// How a model is written to a file.
struct ExportOptions {
  bool for_inference = false;  ///< rewrite it by model_for_inference()
  /// Write tensors of 1 KiB and more to PATH.data beside the file PATH (PATH.data-2, … if a file
  /// has that name): ONNX's external data. The two files belong together; copy both. Without this
  /// option, that is done only for a model that would be larger than `max_file_bytes`.
  bool external_data = false;
  size_t max_file_bytes = INT_MAX;  ///< protobuf's own limit is INT_MAX
  /// Of a session with adapters (TrainingOptions::lora_rank): write W + factor · A · B as the
  /// weight W, and no adapters. False: write W as it was, A and B as initializers, and the products
  /// that read them. This is always done for a weight that the file stores in another type than its
  /// product reads (int8 or int4, which DequantizeLinear reads): it stays packed.
  bool merge_adapters = true;
  /// Entries of the model's metadata (metadata_props), by key. They replace entries of the model
  /// with the same keys; an empty text removes one.
  std::map<std::string, std::string> metadata{};
};

/// Copies a serialised model for inference:
///
/// - BatchNormalization leaves training mode: it uses its running statistics, and does not change
///   them. Dropout becomes the identity. Both hold in bodies and functions too.
/// - A BatchNormalization that is the only reader of a Conv, Gemm or MatMul with constant weights
/// is folded into these weights. It stays if its statistics are computed, if the weights are not
/// float32 or float64, inside of bodies and functions, or if another node reads the same value.
///
/// The rest does not change. If `folder` is given, the copy includes external data; else such
/// tensors stay external and are not folded. Throws ModelError if the bytes are not an ONNX model,
/// or if the copy would exceed protobuf's 2 GiB: then use write_for_inference().
std::string model_for_inference(std::span<const std::byte> model,
                                const std::filesystem::path& folder = {});

/// The same from file to file, for any size; `options` sets where the data is written. If `path` is
/// in the model's folder, external data that does not change stays where it is. Throws ModelError,
/// IoError; then a file that was at `path` does not change.
void write_for_inference(const std::filesystem::path& model, const std::filesystem::path& path,
                         const ExportOptions& options = {});

}  // namespace steep
