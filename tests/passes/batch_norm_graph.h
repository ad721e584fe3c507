// A batch normalisation with an activation and their gradients, for tests of passes.
#pragma once

#include <string>
#include <vector>

#include "autodiff/gradient.h"
#include "ops/build.h"
#include "ops/defs/batch_norm.h"

namespace steep::testing {

struct BatchNormGraph {
  Graph g;
  Value z, y;  ///< before and after the activation

  /// The activation is Relu, or, with bounds 0 and 6, Clip or Hardtanh, which is written as
  /// captured graphs have it. The gradients come first among the outputs.
  BatchNormGraph(const std::string& curve, const Type& type) {
    const Type channels{type.dtype, Shape{(*type.shape)[1]}};
    const Value x = g.add_input("x", type), scale = g.add_input("scale", channels),
                bias = g.add_input("bias", channels), dy = g.add_input("dy", type);
    z = batch_norm(x, scale, bias, 1e-3).y;
    const Value low = scalar(g, 0, type.dtype), high = scalar(g, 6, type.dtype);
    Value dz = dy;
    if (curve == "Hardtanh") {
      y = where(less_or_equal(z, low), low, where(apply("GreaterOrEqual", {z, high}), high, z));
      dz = where(apply("And", {less(z, high), greater(z, low)}), dy, 0);
    } else {
      y = curve == "Relu" ? apply("Relu", {z}) : apply("Clip", {z, low, high});
    }
    const std::vector<Value> of{curve == "Hardtanh" ? z : y}, seeds{dz}, wrt{x, scale, bias};
    for (const Value d : add_gradients(g, of, seeds, wrt, Phase::forward)) g.add_output("d", d);
    g.add_output("y", y);
    g.prune();
  }
};

}  // namespace steep::testing
