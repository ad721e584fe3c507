// TensorProto → Tensor. Private to src/model: protobuf types end here.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <vector>

#include "model/read/external_data.h"
#include "steep/tensor.h"

namespace steep {

/// The dtype of that ONNX number. Throws ModelError naming `name` when Steep does not hold such
/// elements.
DType dtype_from_onnx(int32_t number, const std::string& name);

/// The extents. Throws ModelError for impossible ones.
Dims dims_of(const onnx::TensorProto& proto, const std::string& name, DType dtype);
/// Where external data lies. Throws ModelError for numbers that are none.
ExternalSlice slice_of(const onnx::TensorProto& proto, const std::string& name);

/// Copies the data out. Extents and the number of bytes present are checked before memory is taken.
/// Throws ModelError naming the tensor; strings and complex numbers are refused.
Tensor decode(const onnx::TensorProto& proto, const std::string& name, ExternalData& external);

/// Every tensor of a model, read once. Initializers, attributes, subgraphs and function bodies all
/// pass here.
class TensorTable {
 public:
  /// `given`: data of initializers by name, instead of what their messages hold.
  TensorTable(const std::filesystem::path& folder, size_t max_bytes,
              std::map<std::string, Tensor> given = {})
      : external_(folder), max_bytes_(max_bytes), given_(std::move(given)) {}

  /// Reads the tensor and empties the message (it keeps name and dtype, and its doc string becomes
  /// the tensor's number here), so that its bytes exist once.
  void take(onnx::TensorProto* proto, const std::string& name);
  /// The same of an initializer of the model's own graph, which may be given.
  void take_initializer(onnx::TensorProto* proto);
  /// Makes `dense` a message as take() leaves it, of the tensor with zeros where `sparse` has no
  /// value. Throws ModelError for indices that are out of order or range.
  void take_sparse(const onnx::SparseTensorProto& sparse, const std::string& name,
                   onnx::TensorProto* dense);
  /// Makes an attribute `sparse_value` of a Constant a `value`.
  void take_sparse(onnx::AttributeProto* attribute, const std::string& name);
  /// The tensor taken from this message, or from the one that this is a copy of (ONNX's library
  /// copies bodies into functions). For one that was never taken (what that library made itself) a
  /// fresh copy.
  Tensor get(const onnx::TensorProto& proto, const std::string& name);

 private:
  void keep(onnx::TensorProto* proto, Tensor tensor);
  void count(const onnx::TensorProto& proto, const std::string& name);

  ExternalData external_;
  size_t max_bytes_;
  size_t bytes_ = 0;
  std::map<std::string, Tensor> given_;
  std::vector<Tensor> tensors_;
};

}  // namespace steep
