// A trained model as one runs it.
#pragma once

#include <climits>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace steep {

/// How a model is written to a file.
struct ExportOptions {
  bool for_inference = false;  ///< as model_for_inference() rewrites it
  /// Tensors of 1 KiB and more lie beside the file PATH, in PATH.data (PATH.data-2, … where there
  /// is a file of that name): ONNX's external data. The two belong together; copy both. Without it
  /// that is done only for a model that would be larger than `max_file_bytes`.
  bool external_data = false;
  size_t max_file_bytes = INT_MAX;  ///< protobuf's own limit is INT_MAX
};

/// Copies a serialised model for running it, not training it on:
///
/// - BatchNormalization in training mode normalises by its running statistics, as it does in
///   evaluation, and leaves them as they are for whoever reads them; Dropout is the identity. So
///   they are in bodies and functions.
/// - A BatchNormalization that is the only reader of a Conv, Gemm or MatMul with constant weights
///   is folded into these weights and gone. Others stay: of computed statistics, of other weights
///   than float32 and float64, inside of bodies and functions, or after a value that somebody else
///   reads.
///
/// Everything else is kept. Tensors whose data is external, wherever they stand, are brought in if
/// `folder` is given, else they stay outside and are not folded. Throws ModelError when the bytes
/// are no ONNX model or the copy would exceed protobuf's 2 GiB: then write_for_inference().
std::string model_for_inference(std::span<const std::byte> model,
                                const std::filesystem::path& folder = {});

/// The same from file to file, of any size: `options` says whether data lies beside it. In the
/// model's own folder, external data that did not change stays where it is. Throws ModelError,
/// IoError; then what was at `path` is as it was.
void write_for_inference(const std::filesystem::path& model, const std::filesystem::path& path,
                         const ExportOptions& options = {});

}  // namespace steep
