// Converts TensorProto to Tensor. Private to src/model: no code outside handles protobuf types.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <vector>

#include "model/read/external_data.h"
#include "steep/tensor.h"

namespace steep {

/// The dtype with that ONNX number. Throws ModelError with `name` when Steep does not support it.
DType dtype_from_onnx(int32_t number, const std::string& name);

/// The extents. Throws ModelError for invalid extents.
Dims dims_of(const onnx::TensorProto& proto, const std::string& name, DType dtype);
/// The location of external data. Throws ModelError for malformed numbers.
ExternalSlice slice_of(const onnx::TensorProto& proto, const std::string& name);

/// Copies the data into a tensor. Checks extents and byte count before it allocates. Throws
/// ModelError with the tensor's name; refuses strings and complex numbers.
Tensor decode(const onnx::TensorProto& proto, const std::string& name, ExternalData& external);

/// All tensors of a model, each read once: those of initializers, attributes, bodies and functions.
class TensorTable {
 public:
  /// `values`: data of initializers by name, used instead of the data in their messages. `before`:
  /// see ExternalData.
  TensorTable(const std::filesystem::path& folder, size_t max_bytes,
              std::map<std::string, Tensor> values = {}, FileMarks before = {})
      : external_(folder, std::move(before)), max_bytes_(max_bytes), values_(std::move(values)) {}

  /// Reads the tensor and empties the message, so that the data exists once. The message keeps name
  /// and dtype; its doc string becomes the tensor's number in this table.
  void take(onnx::TensorProto* proto, const std::string& name);
  /// As take(), for an initializer of the model's own graph, whose data may come from `values`.
  void take_initializer(onnx::TensorProto* proto);
  /// Turns `dense` into a message as take() leaves it, for the dense form of `sparse` (zeros where
  /// it has no value). Throws ModelError for indices that are unordered or out of range.
  void take_sparse(const onnx::SparseTensorProto& sparse, const std::string& name,
                   onnx::TensorProto* dense);
  /// Turns the attribute `sparse_value` of a Constant into `value`.
  void take_sparse(onnx::AttributeProto* attribute, const std::string& name);
  /// The tensor that take() read from this message, or from the message that this is a copy of
  /// (ONNX's library copies bodies into functions). Decodes a message that was never taken, such as
  /// one made by that library.
  Tensor get(const onnx::TensorProto& proto, const std::string& name);
  /// The files of external data that were read.
  FileMarks data_files() const { return external_.marks(); }

 private:
  void keep(onnx::TensorProto* proto, Tensor tensor);
  void count(const onnx::TensorProto& proto, const std::string& name);

  ExternalData external_;
  size_t max_bytes_;
  size_t bytes_ = 0;
  std::map<std::string, Tensor> values_;
  std::vector<Tensor> tensors_;
};

}  // namespace steep
