// The memory plan: which kernel makes which value, in what order, and where every value's bytes
// lie. Made once per specialisation; a run only follows it.
//
// Values are grouped into buffers: a view (Reshape, a contiguous Slice) shares the buffer of what
// it views, a value computed in place shares the buffer of the operand that it overwrites. Buffers
// that live only during the step get byte offsets in one arena, such that two buffers overlap only
// if they are never alive at the same time.
//
// Every device has an arena of its own. Inputs, states and outputs are the host's; what a kernel
// elsewhere reads and makes of them crosses by steep.Copy nodes (place.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/kernel.h"
#include "ir/graph.h"
#include "plan/memory_point.h"

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
  size_t offset = 0;  ///< in the arena of its device
  int device = 0;     ///< 0: the host; else the device at this number, from 1, of Devices::others()
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
  Node node{};                               ///< null for a copy that no node stands for
  std::unique_ptr<ProviderKernel> kernel{};  ///< null for a copy
  int device = 0;  ///< which one computes; of a copy: the one that is not the host
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
  size_t arena_bytes = 0;                  ///< of the host
  std::vector<size_t> device_arena_bytes;  ///< by device, from 1
  Devices devices = Devices::host_alone();
  std::vector<Declined> declined;  ///< what runs elsewhere, or in parts
  /// Where a limit of memory needed a search for plans: what MemoryPlanner::search() found.
  std::vector<MemoryPoint> found{};
};

/// Nodes in the order in which they will run: forward before backward, insertion order where
/// dependencies allow, every reader of a state before the node that overwrites it in place, and
/// that node as early as its phase allows.
std::vector<Node> schedule(const Graph& graph);

/// Gives byte offsets to the buffers with Storage::arena: largest first, each at the lowest offset
/// that is free during its whole life (Pisarchyk & Lee, Efficient Memory Management for Deep Neural
/// Net Inference, 2020, "greedy by size"). Returns the size of the arena. Offsets are multiples
/// of 64; behind large buffers a little stays free. Looks at the buffers of one device.
size_t place_buffers(std::vector<Buffer>& buffers, int device = 0);

/// Plans the graph. Each node runs on the first device with a kernel for it; nodes that no kernel
/// accepts are replaced by their decomposition. `in_parts`: what specialising took apart. Throws
/// ProviderError listing every node that can run neither way, with the kernels' reasons.
Plan make_plan(Graph graph, const Devices& devices, std::vector<Declined> in_parts = {});

struct LoweredGraph;

/// Plans a graph whose nodes have kernels already. Asks nothing of the table of operators.
Plan make_plan(Graph graph, LoweredGraph lowered, const Devices& devices);

/// Text: one line a step with kernel and places; then the totals; with other devices than the host
/// what crosses, and what they declined. Stable.
std::string to_text(const Plan& plan);

}  // namespace steep
