// A model without the data of its tensors: what exporters copy, rewrite and write, however large
// the weights are.
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

/// What has fewer bytes stays in the model's own file.
constexpr size_t kDetachedBytes = 1024;

class DetachedModel {
 public:
  /// Of a serialised model, which is borrowed. The weights are in the places of initializers and
  /// Constant nodes by the names of their outputs; inside of bodies, as model/read/body_names.h has
  /// them. External data, of any tensor of the model, lies in `folder`; with none it stays where it
  /// is. Throws ModelError: see with_weights().
  DetachedModel(std::span<const std::byte> model, const std::map<std::string, Tensor>& weights,
                const std::filesystem::path& folder, const Limits& limits = {});
  ~DetachedModel();
  DetachedModel(const DetachedModel&) = delete;
  DetachedModel& operator=(const DetachedModel&) = delete;

  /// The model with placeholders for tensors that are replaced, external, or have kDetachedBytes of
  /// raw data. A small message, for protobuf to read; set_skeleton() takes what became of it.
  const std::string& skeleton() const { return skeleton_; }
  void set_skeleton(std::string bytes) { skeleton_ = std::move(bytes); }

  /// The data of a tensor of the skeleton, a placeholder or not; none where it stays outside.
  /// Throws ModelError, IoError.
  std::optional<Tensor> read(const onnx::TensorProto& tensor);
  /// Makes `tensor` a placeholder for data of its dtype and extents.
  void hold(onnx::TensorProto* tensor, const Tensor& data);
  /// Bytes of a tensor's data.
  size_t bytes_of(const onnx::TensorProto& tensor) const;

  /// The skeleton with all data in it, but for what stays outside. Throws ModelError for more than
  /// protobuf's 2 GiB.
  std::string whole();
  /// Writes it: ExportOptions says in which files. In the folder of its external data, tensors that
  /// were not replaced stay where they are. Throws IoError; then what was at `path` is as it was.
  void write(const std::filesystem::path& path, const ExportOptions& options);

 private:
  struct Data;
  bool keeps_data_in(const std::filesystem::path& target) const;
  std::set<std::string> locations() const;
  class Detaching;
  class Attaching;
  using Sink = std::function<void(const void*, size_t)>;

  void hand_on(size_t number, const Sink& take);
  void hand_on(const Pieces& pieces, const Sink& take);

  std::span<const std::byte> model_;
  std::filesystem::path folder_;
  ExternalData external_;
  std::vector<Data> data_;
  std::string skeleton_;
};

}  // namespace steep
