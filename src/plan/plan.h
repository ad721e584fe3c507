// The memory plan: which kernel makes which value, in what order, and where every value's bytes
// lie. Made once per specialisation; a run only follows it.
//
// Values are grouped into buffers: a view (Reshape, a contiguous Slice) shares the buffer of what
// it views, a value computed in place shares the buffer of the operand that it overwrites. Buffers
// that live only during the step get byte offsets in one arena, such that two buffers overlap only
// if they are never alive at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "runtime/kernel.h"

namespace steep {

/// Where a buffer's bytes come from.
enum class Storage : uint8_t {
  arena,     ///< `index` unused; `offset` in the arena
  input,     ///< index into Graph::inputs()
  constant,  ///< index into Plan::constants
  state,     ///< index into Graph::states()
  output,    ///< handed to the caller; index into Plan::output_buffers
};

struct Buffer {
  Storage storage = Storage::arena;
  size_t bytes = 0;
  size_t offset = 0;  ///< in the arena
  uint32_t index = 0;
  int first = 0;  ///< step that writes it first
  int last = 0;   ///< last step that reads or writes it; -1: none
  Phase phase = Phase::forward;
};

/// Bytes of one value: a buffer and a byte offset in it.
struct Place {
  int buffer = -1;
  size_t offset = 0;
};

struct Step {
  Node node{};                       ///< null for a copy
  std::unique_ptr<Kernel> kernel{};  ///< null for a copy
  std::string_view candidate{};
  std::vector<Place> inputs{};  ///< buffer -1: absent
  std::vector<Place> outputs{};
  Place scratch{};
  size_t copy_bytes = 0;  ///< of a copy: outputs[0] ← inputs[0]
  Phase phase = Phase::forward;
  bool empty = false;  ///< no output has an element: the kernel need not run
};

struct PlannedOutput {
  std::string name;
  Place place;
  DType dtype;
  Dims dims;
  Phase phase;
};

struct Plan {
  std::unique_ptr<Graph> graph;  ///< the specialised, rewritten graph; steps refer to its nodes
  std::vector<Step> steps;       ///< forward steps first
  size_t backward_begin = 0;     ///< index of the first backward step
  std::vector<Buffer> buffers;
  std::vector<PlannedOutput> outputs;
  std::vector<uint32_t>
      output_buffers;  ///< buffers with Storage::output, in the order of their index
  std::vector<Tensor> constants;
  size_t arena_bytes = 0;
};

/// Nodes in the order in which they will run: forward before backward, insertion order where
/// dependencies allow, every reader of a state before the node that overwrites it in place, and
/// that node as early as its phase allows.
std::vector<Node> schedule(const Graph& graph);

/// Gives byte offsets to the buffers with Storage::arena: largest first, each at the lowest offset
/// that is free during its whole life (Pisarchyk & Lee, Efficient Memory Management for Deep Neural
/// Net Inference, 2020, "greedy by size"). Returns the size of the arena. Offsets are multiples
/// of 64; behind large buffers a little stays free.
size_t place_buffers(std::vector<Buffer>& buffers);

/// Plans the graph. Nodes that no kernel accepts are replaced by their decomposition. Throws
/// ProviderError listing every node that can run neither way, with the kernels' reasons.
Plan make_plan(Graph graph, const Provider& provider);

/// Text: one line a step with kernel, places and lifetimes; then the buffers; then the totals.
/// Stable.
std::string to_text(const Plan& plan);

}  // namespace steep
