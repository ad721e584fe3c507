// steep.ReadFile(place int64[2]){dtype, shape, reader} → the tensor that lies there in a file
// (data/file_places.h). The result of one node serves one reader, so that it takes memory only
// while it is used: `reader` is a number that keeps equal nodes apart.
#include "ops/steep_types.h"

namespace steep {
namespace {

std::vector<Type> read_file_infer(Node n) {
  require_rank(n, 0, 1);
  return {{result_dtype(n, DType::undefined), to_shape(n.attrs().ints("shape"))}};
}

}  // namespace

extern const OpDef kSteepReadFile = {
    .name = "steep.ReadFile", .ranks = "1", .stops_gradient = true, .infer = read_file_infer};

}  // namespace steep
