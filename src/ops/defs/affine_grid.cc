// AffineGrid(theta[N, rank, rank + 1], size = [N, C, ...]){align_corners} → grid[N, ..., rank]: the
// points of a regular grid in [-1, 1], transformed by theta. Jaderberg et al. 2015.
#include <algorithm>

#include "ops/build.h"
#include "ops/steep_types.h"
#include "runtime/budget.h"

namespace steep {
namespace {

Ints constant_size(Node n) {
  const Tensor* size = constant(n.input(1));
  if (size == nullptr || size->size() < 4 || size->size() > 5) {
    throw_shape_error(n, "The size of an affine grid has to be known.",
                      "a constant of 4 or 5 elements", to_string(n.input(1).type()));
  }
  return size->to_ints();
}

std::vector<Type> affine_grid_infer(Node n) {
  Type grid{n.input(0).dtype(), {}};
  Value size = n.input(1);
  const auto extents = shape_in(size);
  if (!extents || extents->size() < 4) return {grid};
  grid.shape = Shape{(*extents)[0]};
  grid.shape->insert(grid.shape->end(), extents->begin() + 2, extents->end());
  grid.shape->emplace_back(static_cast<int64_t>(extents->size()) - 2);
  return {grid};
}

std::vector<Value> affine_grid_decompose(Node n) {
  Value theta = n.input(0);
  const Ints size = constant_size(n);
  const Dims spatial(size.begin() + 2, size.end());
  const bool align = integer_of(n, "align_corners") != 0;
  const int64_t rank = static_cast<int64_t>(spatial.size()), points = element_count(spatial);
  // Each point is (x, y, .., 1), the last axis first.
  require_bytes(static_cast<size_t>(std::min(points, int64_t{1} << 50)) *
                    static_cast<size_t>(rank + 1) * sizeof(double),
                "the points of an affine grid");
  std::vector<double> places;
  for (int64_t p = 0; p < points; ++p) {
    poll();
    int64_t rest = p;
    for (size_t a = spatial.size(); a-- > 0; rest /= spatial[a]) {
      const int64_t i = rest % spatial[a];
      const auto at = static_cast<double>(i), extent = static_cast<double>(spatial[a]);
      const double steps = align ? std::max(extent - 1, 1.0) : extent;
      places.push_back((2 * at + (align ? 0 : 1)) / steps - 1);
    }
    places.push_back(1);
  }
  Value base = cast_like(n.graph().add_constant(Tensor::from(places, {points, rank + 1})), theta);
  Ints shape{size[0]};
  shape.insert(shape.end(), spatial.begin(), spatial.end());
  shape.push_back(rank);
  return {reshape(matmul(base, swap_last(theta)), shape)};
}

}  // namespace

extern const OpDef kAffineGrid = {.name = "AffineGrid",
                                  .attributes = {{"align_corners", 0}},
                                  .ranks = "3 1",
                                  .sizes = {{1, 0}},
                                  .infer = affine_grid_infer,
                                  .decompose = affine_grid_decompose};

}  // namespace steep
