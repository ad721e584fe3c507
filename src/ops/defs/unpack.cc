// steep.Unpack(bytes[n]){dtype, shape} → elements narrower than a byte, from ONNX's packing of them
// (runtime/packing.h). In memory an element then takes a byte, so packed weights are unpacked when
// they are read, and not kept.
#include "ops/steep_types.h"
#include "runtime/counted.h"
#include "runtime/packing.h"

namespace steep {
namespace {

std::vector<Type> unpack_infer(Node n) {
  const Ints& dims = n.attrs().ints("shape");
  const DType dtype = result_dtype(n, DType::undefined);
  const auto bytes = static_cast<int64_t>(packed_bytes(dtype, element_count(dims)));
  const std::optional<Shape>& shape = shape_if_known(n.input(0));
  if (shape && shape->size() == 1 && shape->at(0).known() && shape->at(0).value() != bytes) {
    throw_shape_error(n, "Packed elements do not fill their shape.", counted(bytes, "byte"),
                      counted(shape->at(0).value(), "byte"));
  }
  return {{dtype, to_shape(dims)}};
}

}  // namespace

extern const OpDef kSteepUnpack = {
    .name = "steep.Unpack", .ranks = "1", .stops_gradient = true, .infer = unpack_infer};

}  // namespace steep
