// Helpers to read and build steep.Loop. loop.cc describes the operator.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// The numbers of a loop's inputs and outputs of each sort.
struct LoopLayout {
  int carried, scanned, stacked, captured;
  bool conditional;

  explicit LoopLayout(Node n);

  int saved(int i) const { return carried + stacked + i; }
  int iterations() const { return 2 * carried + stacked; }
};

/// A loop over slices. Its body: iteration, carried…, slices of scanned…, captured… → carried…,
/// stacked….
struct NewLoop {
  Body body{};
  std::vector<Value> carried{}, scanned{}, captured{};
  Ints in_axes{}, out_axes{};  ///< one axis per scanned value, and per stacked value
  bool from_the_end = false;   ///< slices and stacks from the end
  bool sequences = false;      ///< stacked values are sequences
};

/// Adds the loop; carried values must keep their shapes. Returns carried…, stacked….
std::vector<Value> add_loop(Graph& g, const NewLoop& loop);

/// Attribute of the Loop and Scan nodes that loop_in_parts() makes: the number of captured inputs,
/// the last inputs of node and body. The body refers to them by name.
inline constexpr const char* kCaptured = "captured";

/// The outputs of a steep.Loop, computed by ONNX's Scan or Loop; null for outputs that nothing
/// reads.
std::vector<Value> loop_in_parts(Node n);

/// The type of x's slices along `axis`, for use in a body. Unknown extents get symbols that start
/// with `what`, so that the body can tell which extents are equal.
Type slice_in_body(Value x, int64_t axis, const std::string& what);

}  // namespace steep
