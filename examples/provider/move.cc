// Gather, steep.GatherGrad and Transpose.
#include <algorithm>
#include <cstring>

#include "kernels.h"

namespace mirror {
namespace {

int64_t axis_of(const Node& node, int64_t rank) {
  const int64_t axis = node.integer("axis");
  return axis < 0 ? axis + rank : axis;
}

int64_t index_at(const void* data, int32_t type, int64_t i, int64_t extent) {
  const int64_t index =
      type == kInt64 ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  if (index < -extent || index >= extent) {
    throw DataFailure("an index is out of range: " + std::to_string(index) + " of " +
                      std::to_string(extent));
  }
  return index < 0 ? index + extent : index;
}

bool indices(const Operand& x) { return x.type == kInt64 || x.type == kInt32; }

}  // namespace

std::optional<Kernel> make_gather(const Node& node, std::string& why) {
  const Operand data = node.in(0), picks = node.in(1);
  if (data.type != kFloat || !indices(picks)) return decline(why, "not of float32 by integers");
  const int64_t axis = axis_of(node, data.rank());
  const int64_t outer = data.product(0, axis), extent = data.dims[static_cast<size_t>(axis)],
                inner = data.product(axis + 1, data.rank()), count = picks.size();
  Kernel kernel;
  kernel.bind = [=, type = picks.type](const Pointers& at) {
    return [=] {
      for (int64_t i = 0; i < count; ++i) index_at(at.in[1], type, i, extent);  // before writing
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t i = 0; i < count; ++i) {
          const int64_t from = index_at(at.in[1], type, i, extent);
          std::memcpy(at.y(0) + (o * count + i) * inner, at.f(0) + (o * extent + from) * inner,
                      static_cast<size_t>(inner) * sizeof(float));
        }
      }
    };
  };
  return kernel;
}

std::optional<Kernel> make_gather_grad(const Node& node, std::string& why) {
  const Operand dy = node.in(0), picks = node.in(1), y = node.out(0);
  if (dy.type != kFloat || y.type != kFloat || !indices(picks))
    return decline(why, "not of float32 by integers");
  const int64_t axis = axis_of(node, y.rank());
  const int64_t outer = y.product(0, axis), extent = y.dims[static_cast<size_t>(axis)],
                inner = y.product(axis + 1, y.rank()), count = picks.size(), all = y.size();
  const bool base = node.in(3).present();
  Kernel kernel;
  kernel.host_inputs = 1U << 2;  // the shape; the result's type already gives it
  kernel.bind = [=, type = picks.type](const Pointers& at) {
    return [=] {
      if (base) {
        std::memmove(at.y(0), at.f(3), static_cast<size_t>(all) * sizeof(float));
      } else {
        std::fill_n(at.y(0), all, 0.0F);
      }
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t i = 0; i < count; ++i) {
          float* to = at.y(0) + (o * extent + index_at(at.in[1], type, i, extent)) * inner;
          const float* from = at.f(0) + (o * count + i) * inner;
          for (int64_t e = 0; e < inner; ++e) to[e] += from[e];
        }
      }
    };
  };
  return kernel;
}

std::optional<Kernel> make_transpose(const Node& node, std::string& why) {
  if (!all_floats(node, why)) return std::nullopt;
  const Operand x = node.in(0);
  Dims perm = node.ints("perm");
  if (perm.empty()) {
    for (int64_t i = x.rank(); i-- > 0;) perm.push_back(i);
  }
  Dims dims, strides;
  for (int64_t axis : perm) {
    dims.push_back(x.dims[static_cast<size_t>(axis)]);
    strides.push_back(x.product(axis + 1, x.rank()));
  }
  Kernel kernel;
  kernel.bind = [=](const Pointers& at) {
    return [=] {
      for_each_offset(dims, strides, [&](int64_t i, int64_t from) { at.y(0)[i] = at.f(0)[from]; });
    };
  };
  return kernel;
}

}  // namespace mirror
