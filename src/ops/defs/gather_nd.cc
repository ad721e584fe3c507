// y[i] = x[indices[i]] with index tuples. The leading batch_dims axes of x and indices are common.
#include "ops/build.h"
#include "ops/positions.h"

namespace steep {
namespace {

/// Prepends the position along each batch axis to every tuple of `indices`, so that batch_dims
/// becomes 0.
Value with_batch_positions(Value indices, int64_t batch_dims) {
  Graph& g = indices.graph();
  const int64_t rank = indices.rank();
  Value extents = shape_of(indices);
  Value column = concat({part(extents, 0, rank - 1), ints(g, {1})}, 0);
  std::vector<Value> columns;
  for (int64_t axis = 0; axis < batch_dims; ++axis) {
    const Value along = along_axis(positions(extent_of(indices, axis)), axis, rank);
    columns.push_back(apply("Expand", {along, column}));
  }
  columns.push_back(indices);
  return concat(columns, -1);
}

Grads gather_nd_vjp(Node n, const Grads& dy) {
  const int64_t batch_dims = integer_of(n, "batch_dims");
  Value indices = batch_dims == 0 ? n.input(1) : with_batch_positions(n.input(1), batch_dims);
  return {apply("ScatterND", {zeros_like(n.input(0)), indices, dy[0]},
                {{"reduction", std::string("add")}})};
}

/// Sets the scalar shape of a single element; ONNX's function leaves it unknown.
void gather_nd_refine(Node n) {
  const Value x = n.input(0), indices = n.input(1), y = n.output(0);
  if (y.type().shape || !x.type().shape || !indices.type().shape || indices.rank() != 1) return;
  if (provably_equal(indices.shape()[0], Dim(x.rank())))
    n.graph().set_type(y, {y.dtype(), Shape{}});
}

}  // namespace

extern const OpDef kGatherND = {.name = "GatherND",
                                .attributes = {{"batch_dims", 0}},
                                .ranks = "1+ 1+",
                                .reads_part = true,
                                .vjp = gather_nd_vjp,
                                .refine = gather_nd_refine};

}  // namespace steep
