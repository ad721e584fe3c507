// steep.Loop for those who read and write graphs. See loop.cc for what it means.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Where things are among a loop's inputs and outputs.
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
  Ints in_axes{}, out_axes{};  ///< one for each scanned, and for each stacked value
  bool from_the_end = false;   ///< of what is scanned and stacked
  bool sequences = false;      ///< stacked values are sequences
};

/// Adds the loop, whose carried values keep their shapes. Returns carried…, stacked….
std::vector<Value> add_loop(Graph& g, const NewLoop& loop);

/// Attribute of Loop and Scan nodes that loop_in_parts() makes: the number of inputs, the last ones
/// of node and body, that the body knows by name.
inline constexpr const char* kCaptured = "captured";

/// A steep.Loop's outputs as ONNX's Scan or Loop gives them; null for those that nothing reads.
std::vector<Value> loop_in_parts(Node n);

/// The type of x's slices along `axis`, for a body: extents without a name get one of `what`, so
/// that the body can tell which are equal.
Type slice_in_body(Value x, int64_t axis, const std::string& what);

}  // namespace steep
