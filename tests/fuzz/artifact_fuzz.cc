// Any bytes read as an artifact are refused with a steep::Error, or can be trained and predicted
// with. The first byte selects the form: a file, or a header with correct checksums (the data are
// zeros).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "artifact/artifact.h"
#include "steep/artifact.h"
#include "steep/error.h"

namespace {

/// Zeros with the types that the session expects.
std::vector<steep::Tensor> zeros(const std::vector<steep::TensorInfo>& infos) {
  std::vector<steep::Tensor> arrays;
  for (const steep::TensorInfo& info : infos) {
    steep::Dims dims = info.dims;
    for (int64_t& extent : dims) extent = extent < 0 ? 1 : extent;
    arrays.push_back(steep::Tensor::zeros(info.dtype, dims));
  }
  return arrays;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace steep;
  if (size == 0) return 0;
  const Limits limits{.max_bytes = size_t{16} << 20, .max_nodes = 1000};
  std::string file(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 != 0) file = seal_artifact(std::move(file), std::string(1 << 14, '\0'));
  try {
    ArtifactSession session(std::as_bytes(std::span(file)), limits);
    if (!session.prediction_info().empty()) session.predict(zeros(session.prediction_info()));
    session.step(zeros(session.input_info()));
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the expected refusal
  }
  return 0;
}
