// A model without the data of its tensors. Exporters copy, rewrite and write models of any size
// this way.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "model/read/external_data.h"
#include "model/read/pieces.h"
#include "steep/export.h"
#include "steep/limits.h"
#include "steep/tensor.h"

namespace steep {

/// Smaller tensors stay in the model's own file.
constexpr size_t kDetachedBytes = 1024;

class DetachedModel {
 public:
  /// Borrows the serialised model. `weights` replace initializers, and Constant nodes by the names
  /// of their outputs; in bodies they are named as in model/read/body_names.h. External data of the
  /// model is read from `folder`; without a folder it stays where it is. `data_files`: the files
  /// that were read before, see ExternalData. Throws ModelError: see with_weights().
  DetachedModel(std::span<const std::byte> model, const std::map<std::string, Tensor>& weights,
                const std::filesystem::path& folder, const Limits& limits = {},
                const FileMarks& data_files = {});
  ~DetachedModel();
  DetachedModel(const DetachedModel&) = delete;
  DetachedModel& operator=(const DetachedModel&) = delete;

  /// The model with placeholders for tensors that are replaced, external, or have at least
  /// kDetachedBytes of raw data. It is small enough for protobuf to parse. set_skeleton() sets the
  /// edited skeleton.
  const std::string& skeleton() const { return skeleton_; }
  void set_skeleton(std::string bytes) { skeleton_ = std::move(bytes); }

  /// The data of a tensor of the skeleton, placeholder or not; nothing if it stays external. Throws
  /// ModelError, IoError.
  std::optional<Tensor> read(const onnx::TensorProto& tensor);
  /// Makes `tensor` a placeholder for data of its dtype and extents.
  void hold(onnx::TensorProto* tensor, const Tensor& data);
  /// The size of a tensor's data in bytes.
  size_t bytes_of(const onnx::TensorProto& tensor) const;

  /// The serialised model: the skeleton with all data except data that stays external. Throws
  /// ModelError when it exceeds protobuf's 2 GiB.
  std::string whole();
  /// Writes the model; ExportOptions determines the files. External tensors that were not replaced
  /// stay where they are if `path` is in the same folder. Throws IoError; then the file at `path`
  /// is unchanged.
  void write(const std::filesystem::path& path, const ExportOptions& options);

 private:
  struct Data;
  void set_metadata(const std::map<std::string, std::string>& entries);
  bool keeps_data_in(const std::filesystem::path& target) const;
  std::set<std::string> locations() const;
  class Detaching;
  class Attaching;
  using Sink = std::function<void(const void*, size_t)>;

  void hand_on(size_t number, const Sink& take);
  void hand_on(const Pieces& pieces, const Sink& take);

  std::string with_attributes_;  // the model, if weights in attributes were replaced
  std::span<const std::byte> model_;
  std::filesystem::path folder_;
  ExternalData external_;
  std::vector<Data> data_;
  std::string skeleton_;
};

}  // namespace steep
