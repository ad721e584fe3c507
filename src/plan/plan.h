// The memory plan: the order of nodes, their kernels, and the place of every value in memory. It is
// made once per specialisation; a run only follows it.
//
// Values are grouped into buffers. A view (Reshape, a contiguous Slice) shares the buffer of the
// value that it views; a value that is computed in place shares the buffer of the operand that it
// overwrites. Buffers that live only during the step get byte offsets in one arena. Two buffers
// overlap only if they are never alive at the same time.
//
// Every device has an arena of its own. Inputs, states and outputs are in the host's memory.
// steep.Copy nodes (assign_devices.h) copy values for kernels of other devices.
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

/// The memory that a buffer lies in.
enum class Storage : uint8_t {
  arena,     ///< `index` unused; `offset` in the arena
  input,     ///< index into Graph::inputs()
  constant,  ///< index into Plan::constants
  state,     ///< index into Graph::states()
  output,    ///< goes to the caller; index into Plan::output_buffers
};

struct Buffer {
  Storage storage = Storage::arena;
  size_t bytes = 0;
  size_t offset = 0;  ///< in the arena of its device
  int device = 0;     ///< 0: the host; else an index, from 1, into Devices::others()
  uint32_t index = 0;
  int first = 0;  ///< step that writes it first
  int last = 0;   ///< last step that reads or writes it; -1: none
  Phase phase = Phase::forward;
};

/// The place of a value: a buffer and a byte offset in it.
struct Place {
  int buffer = -1;
  size_t offset = 0;
};

struct Step {
  Node node{};                               ///< null for a copy without a node
  std::unique_ptr<ProviderKernel> kernel{};  ///< null for a copy
  int device = 0;  ///< the one that computes; for a copy the one that is not the host
  std::string_view candidate{};
  std::vector<Place> inputs{};  ///< buffer -1: absent
  std::vector<Place> outputs{};
  Place scratch{};
  size_t copy_bytes = 0;  ///< of a copy: outputs[0] ← inputs[0]
  Phase phase = Phase::forward;
  bool empty = false;  ///< no output has an element: the kernel does not run
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
  size_t arena_bytes = 0;                  ///< of the host's arena
  std::vector<size_t> device_arena_bytes;  ///< by device, from 1
  Devices devices = Devices::host_alone();
  std::vector<Declined> declined;  ///< nodes that a device declined, or that run in parts
  /// If a memory limit required a search for plans: the result of MemoryPlanner::search().
  std::vector<MemoryPoint> found{};
};

/// The nodes in the order in which they run: forward before backward, and insertion order as far as
/// dependencies allow. All readers of a state run before the node that overwrites it in place, and
/// that node runs as early as its phase allows.
std::vector<Node> schedule(const Graph& graph);

/// Gives byte offsets to the buffers with Storage::arena: the largest first, each at the lowest
/// offset that is free during its whole lifetime (Pisarchyk & Lee, Efficient Memory Management for
/// Deep Neural Net Inference, 2020, "greedy by size"). Offsets are multiples of 64; after large
/// buffers some bytes stay free. Only buffers of `device` are placed. Returns the size of the
/// arena.
size_t place_buffers(std::vector<Buffer>& buffers, int device = 0);

/// Plans the graph. Each node runs on the first device with a kernel for it. A node that no kernel
/// accepts is replaced by its decomposition. `decomposed`: nodes that specialise_known()
/// decomposed. Throws ProviderError, which lists every node that cannot run, with the reasons of
/// the kernels.
Plan make_plan(Graph graph, const Devices& devices, std::vector<Declined> decomposed = {});

struct KernelGraph;

/// Plans a graph whose nodes have kernels already. Does not use the table of operators.
Plan make_plan(Graph graph, KernelGraph kernel_graph, const Devices& devices);

/// Text: one line per step with kernel and places; then the totals; with devices other than the
/// host, the copies between them and the nodes that they declined. Equal plans give equal texts.
std::string to_text(const Plan& plan);

}  // namespace steep
