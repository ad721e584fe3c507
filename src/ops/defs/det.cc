// Determinants of square matrices. Their gradient is the matrix of cofactors, which exists for
// singular matrices too.
#include "ops/build.h"
#include "steep/error.h"

namespace steep {
namespace {

Grads det_vjp(Node n, const Grads& dy) {
  return {unsqueeze(dy[0], {-2, -1}) * apply("steep.Cofactors", {n.input(0)})};
}

std::vector<Type> cofactors_infer(Node n) { return {n.input(0).type()}; }

/// c[i, j]: (-1)^(i + j) times the determinant of x without row i and column j. Constant indices
/// gather the minors.
std::vector<Value> cofactors_decompose(Node n) {
  Value x = n.input(0);
  Graph& g = x.graph();
  const int64_t rank = x.rank();
  const Dim& extent = x.shape().back();
  if (!extent.known()) {
    throw ModelError({.what = "The second derivative of a determinant needs a fixed matrix size.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = "square matrices of a fixed size",
                      .received = to_string(x.type()),
                      .remedy = "Give the input of the model fixed extents."});
  }
  const int64_t size = extent.value();
  if (size == 0) return {x};
  std::vector<Value> columns, rows;
  for (int64_t i = 0; i < size; ++i) {
    rows.clear();
    for (int64_t j = 0; j < size; ++j) {
      Ints others_i, others_j;
      for (int64_t k = 0; k < size; ++k) {
        if (k != i) others_i.push_back(k);
        if (k != j) others_j.push_back(k);
      }
      Value minor = apply("Gather", {x, ints(g, others_i)}, {{"axis", rank - 2}});
      minor = apply("Gather", {minor, ints(g, others_j)}, {{"axis", rank - 1}});
      Value det = apply("Det", {minor});
      rows.push_back(unsqueeze((i + j) % 2 == 0 ? det : -det, {-1}));
    }
    columns.push_back(unsqueeze(concat(rows, -1), {-2}));
  }
  return {concat(columns, -2)};
}

}  // namespace

extern const OpDef kDet = {.name = "Det", .ranks = "2+", .vjp = det_vjp};

/// steep.Cofactors(x): matrices of cofactors of square matrices.
extern const OpDef kSteepCofactors = {
    .name = "steep.Cofactors", .infer = cofactors_infer, .decompose = cofactors_decompose};

}  // namespace steep
