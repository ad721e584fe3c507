// AttributeProto → Attr. Private to src/model.
#pragma once

#include <onnx/onnx_pb.h>

#include "ir/attr.h"
#include "model/read/tensor_proto.h"

namespace steep {

/// Throws ModelError with `node` for kinds that a node of Steep's graph cannot hold (graphs, sparse
/// tensors, types).
Attr attr_from_onnx(const onnx::AttributeProto& proto, const std::string& node,
                    TensorTable& tensors);

}  // namespace steep
