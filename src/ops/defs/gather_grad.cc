// steep.GatherGrad(dy, indices, shape, base?){axis}: `base`, or zeros of `shape`, with the slices
// of dy added at `indices` along `axis`.
#include "ops/build.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

Grads gather_grad_vjp(Node n, const Grads& dy) {
  Value slices = apply("Gather", {dy[0], n.input(1)}, {{"axis", integer_of(n, "axis")}});
  return {slices, {}, {}, n.input(3) ? dy[0] : Value()};
}

std::vector<Type> gather_grad_infer(Node n) { return {{n.input(0).dtype(), shape_in(n.input(2))}}; }

/// Scatters along the first axis: moves the index axes of dy, and `axis` of the result, to the
/// front.
std::vector<Value> gather_grad_decompose(Node n) {
  Value dy = n.input(0), indices = n.input(1);
  const int64_t rank = n.output(0).rank(), picks = indices.rank();
  const int64_t axis = normal_axis(n, integer_of(n, "axis"), rank);
  Ints front, perm{axis}, inverse;
  for (int64_t i = 0; i < picks; ++i) front.push_back(axis + i);
  for (int64_t i = 0; i < dy.rank(); ++i) {
    if (i < axis || i >= axis + picks) front.push_back(i);
  }
  for (int64_t i = 0; i < rank; ++i) {
    if (i != axis) perm.push_back(i);
    inverse.push_back(i < axis ? i + 1 : i == axis ? 0 : i);
  }
  Value zeros = apply("Expand", {scalar(n.graph(), 0, dy.dtype()),
                                 apply("Gather", {n.input(2), ints(n.graph(), perm)})});
  Value tuples = unsqueeze(cast(indices, DType::i64), {-1});
  Value dx = apply("ScatterND", {zeros, tuples, transpose(dy, front)},
                   {{"reduction", std::string("add")}});
  dx = transpose(dx, inverse);
  return {n.input(3) ? n.input(3) + dx : dx};
}

}  // namespace

extern const OpDef kSteepGatherGrad = {.name = "steep.GatherGrad",
                                       .attributes = {{"axis", 0}},
                                       .reads_part = true,
                                       .vjp = gather_grad_vjp,
                                       .infer = gather_grad_infer,
                                       .decompose = gather_grad_decompose};

}  // namespace steep
