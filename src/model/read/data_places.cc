#include "model/read/data_places.h"

#include <string_view>
#include <utility>

#include "model/read/model_file.h"
#include "model/read/tensor_proto.h"
#include "runtime/packing.h"

namespace steep {

std::map<std::string, PlacedTensor> place_initializers(std::span<const std::byte> model,
                                                       const std::filesystem::path& folder,
                                                       const std::set<std::string>& names,
                                                       FileMarks* files) {
  constexpr size_t kLeastBytes = 4096;  // less costs more to read than to keep
  const onnx::ModelProto proto =
      parse_known({reinterpret_cast<const char*>(model.data()), model.size()});
  std::map<std::string, PlacedTensor> result;
  std::map<std::string, std::shared_ptr<const DataFile>> open;  // by location
  ExternalData external(folder);
  for (const onnx::TensorProto& tensor : proto.graph().initializer()) {
    const std::string& name = tensor.name();
    if (names.count(name) == 0 || tensor.data_location() != onnx::TensorProto::EXTERNAL) continue;
    const DType dtype = dtype_from_onnx(tensor.data_type(), name);
    Dims dims = dims_of(tensor, name, dtype);
    const size_t bytes = packed_bytes(dtype, element_count(dims));
    if (bytes < kLeastBytes) continue;
    const ExternalSlice slice = slice_of(tensor, name);
    external.check(name, slice, static_cast<int64_t>(bytes));
    std::shared_ptr<const DataFile>& file = open[slice.location];
    if (!file) file = external.keep(name, slice.location);
    result[name] = {place_in(file, slice.offset),
                    Tensor::wrap(dtype, std::move(dims), nullptr, nullptr)};
  }
  files->merge(external.marks());
  return result;
}

}  // namespace steep
