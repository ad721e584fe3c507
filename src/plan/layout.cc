#include "plan/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "plan/assign_devices.h"
#include "runtime/address_space.h"
#include "runtime/budget.h"
#include "runtime/logs.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Whether no output has an element. Such a node is skipped, because the loops of its kernel over
/// other axes may be long.
bool gives_nothing(Node n) {
  for (int o = 0; o < n.output_count(); ++o) {
    if (n.output(o) && element_count(n.output(o).type().dims()) > 0) return false;
  }
  return true;
}

class Planner {
 public:
  Planner(Graph graph, const LayoutInput& on) : on_(on), device_(on.device) {
    plan_.devices = on.devices;
    plan_.graph = std::make_unique<Graph>(std::move(graph));
    device_.resize(g().value_count(), 0);
    order_ = schedule(g());
    places_.resize(g().value_count());
  }

  Plan run() {
    assign_sources();
    find_last_uses();
    find_overwriters();
    for (Node n : order_) {
      poll();
      add_step(n);
    }
    if (!in_backward_) begin_backward();
    end_of_phase(Phase::backward);
    set_lifetimes();
    plan_.arena_bytes = place_buffers(plan_.buffers);
    for (size_t d = 1; d <= plan_.devices.others().size(); ++d)
      plan_.device_arena_bytes.push_back(place_buffers(plan_.buffers, static_cast<int>(d)));
    return std::move(plan_);
  }

 private:
  Graph& g() { return *plan_.graph; }

  /// The node's kernel; null for views and for copies between devices.
  const NodeKernel* kernel_of(Node n) const { return on_.kernels[n.id()]; }

  int add_buffer(Storage storage, size_t bytes, uint32_t index, Phase phase, int device = 0) {
    plan_.buffers.push_back(
        {.storage = storage, .bytes = bytes, .device = device, .index = index, .phase = phase});
    plan_.buffers.back().first = INT32_MAX;
    plan_.buffers.back().last = -1;
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  void assign_sources() {
    auto all = [&](const std::vector<Value>& values, Storage storage) {
      for (uint32_t i = 0; i < values.size(); ++i) {
        places_[values[i].id()] = {
            add_buffer(storage, values[i].type().nbytes(), i, g().input_phase(values[i])), 0};
      }
    };
    all(g().inputs(), Storage::input);
    all(g().states(), Storage::state);
    updates_state_.resize(g().value_count());
    for (const Update& u : g().updates()) updates_state_[u.value.id()] = u.state;
  }

  Place place_of_source(Value v) {
    Place& p = places_[v.id()];
    if (p.buffer < 0 && v.role() == Role::constant) p = add_constant(*v.tensor(), 0);
    return p;
  }

  Place add_constant(const Tensor& tensor, int device) {
    plan_.constants.push_back(tensor);
    const auto index = static_cast<uint32_t>(plan_.constants.size() - 1);
    return {add_buffer(Storage::constant, tensor.nbytes(), index, Phase::forward, device), 0};
  }

  /// For each root value (the start of a chain of views), the position in order_ of the last node
  /// that reads it or a view of it.
  void find_last_uses() {
    root_.resize(g().value_count());
    last_use_.assign(g().value_count(), -1);
    for (uint32_t i = 0; i < root_.size(); ++i) root_[i] = i;
    for (size_t k = 0; k < order_.size(); ++k) {
      Node n = order_[k];
      for (int i = 0; i < n.input_count(); ++i) {
        if (n.input(i)) last_use_[root_[n.input(i).id()]] = static_cast<int>(k);
      }
      if (!is_view(n)) continue;
      for (int i = 0; i < n.output_count(); ++i) {
        if (n.output(i)) root_[n.output(i).id()] = root_[n.input(0).id()];
      }
    }
    find_backward_reads();
    for (const Output& o : g().outputs()) {
      if (!kept_apart(o)) last_use_[root_[o.value.id()]] = INT32_MAX;
    }
    // read at the end of the phase, where it is copied unless it was written in place
    for (const Update& u : g().updates()) last_use_[root_[u.value.id()]] = INT32_MAX;
    wanted_outside_.assign(g().value_count(), 0);
    for (const Output& o : g().outputs()) {
      if (!kept_apart(o)) wanted_outside_[root_[o.value.id()]] = 1;
    }
  }

  void find_backward_reads() {
    backward_reads_.assign(g().value_count(), 0);
    for (Node n : order_) {
      for (int i = 0; n.phase() == Phase::backward && i < n.input_count(); ++i) {
        if (n.input(i)) backward_reads_[root_[n.input(i).id()]] = 1;
      }
    }
    for (const Output& o : g().outputs()) {
      if (o.phase == Phase::backward) backward_reads_[root_[o.value.id()]] = 1;
    }
  }

  /// Whether the caller gets a copy, because backward reads the value and the caller may write to
  /// it.
  bool kept_apart(const Output& o) const {
    return o.may_change && backward_reads_[root_[o.value.id()]] != 0;
  }

  /// Whether the value needs an output buffer, because it or a view of it is a result for the
  /// caller.
  bool leaves(Value y) const { return wanted_outside_[root_[y.id()]] != 0; }

  /// Finds values with a single reader that may overwrite them with a result. Both then share the
  /// output buffer.
  void find_overwriters() {
    overwritten_by_.resize(g().value_count());
    std::vector<char> overwrites(g().value_count(), 0);
    const auto users = g().users();
    for (size_t k = order_.size(); k-- > 0;) {
      Node n = order_[k];
      const NodeKernel* choice = kernel_of(n);
      if (choice == nullptr || choice->device != 0) continue;
      for (auto [i, o] : choice->kernel->may_share()) {
        Value x = n.input(i), y = n.output(o);
        if (!x || !y || overwrites[y.id()] || leaves(x)) continue;
        if (!(leaves(y) || overwritten_by_[y.id()]) || x.type().nbytes() != y.type().nbytes())
          continue;
        Node p = x.producer();
        const bool made = p && p.phase() == n.phase() && kernel_of(p) != nullptr;
        if (!made || users[x.id()].size() != 1 || updates_state_[x.id()]) continue;
        overwritten_by_[x.id()] = y;
        overwrites[y.id()] = 1;
      }
    }
  }

  Place new_place(Node n, Value y) {
    if (leaves(y) || overwritten_by_[y.id()]) {
      const auto index = static_cast<uint32_t>(plan_.output_buffers.size());
      const int b = add_buffer(Storage::output, y.type().nbytes(), index, n.phase());
      plan_.output_buffers.push_back(static_cast<uint32_t>(b));
      return {b, 0};
    }
    return {add_buffer(Storage::arena, y.type().nbytes(), 0, n.phase(), device_[y.id()]), 0};
  }

  /// Finds an operand whose bytes output `o` may overwrite: the operand's last reader is this node,
  /// it fills its buffer, and no other operand lies in that buffer unless the kernel allows it.
  bool take_over(Node n, const ProviderKernel& kernel, int k, int o, Place* place) {
    Value y = n.output(o);
    for (auto [i, out] : kernel.may_share()) {
      if (out != o) continue;
      Value x = n.input(i);
      if (!x) continue;
      if (leaves(y) || overwritten_by_[y.id()]) {
        if (overwritten_by_[x.id()] != y) continue;
        *place = places_[x.id()];
        return true;
      }
      const Place p = places_[x.id()];
      if (p.buffer < 0 || p.offset != 0) continue;
      const Buffer& b = plan_.buffers[static_cast<size_t>(p.buffer)];
      if (b.device != device_[y.id()]) continue;
      const bool updates = updates_state_[y.id()] && updates_state_[y.id()] == x;
      if (b.storage == Storage::state ? !updates : b.storage != Storage::arena) continue;
      if (updates_state_[y.id()] && !updates) continue;
      if (b.bytes != y.type().nbytes() || last_use_[root_[x.id()]] > k) continue;
      if (std::any_of(in_place_buffers_.begin(), in_place_buffers_.end(),
                      [&](int t) { return t == p.buffer; }))
        continue;
      bool clash = false;
      for (int j = 0; j < n.input_count() && !clash; ++j) {
        Value other = n.input(j);
        if (!other || j == i || places_[other.id()].buffer != p.buffer) continue;
        clash = std::find(kernel.may_share().begin(), kernel.may_share().end(), std::pair(j, o)) ==
                kernel.may_share().end();
      }
      if (clash) continue;
      *place = p;
      in_place_buffers_.push_back(p.buffer);
      return true;
    }
    return false;
  }

  void add_step(Node n) {
    const int k = position_++;
    if (n.phase() == Phase::backward && !in_backward_) begin_backward();
    if (n.op() == kCopy) return add_crossing(n, k);
    const NodeKernel* choice = kernel_of(n);
    if (choice == nullptr) {
      const Place base = place_of_source(n.input(0));
      const Ints& offsets = *on_.views[n.id()];
      for (int i = 0; i < n.output_count(); ++i) {
        if (!n.output(i)) continue;
        places_[n.output(i).id()] = {
            base.buffer, base.offset + static_cast<size_t>(offsets[static_cast<size_t>(i)])};
      }
      return;
    }
    Step step{.node = n, .device = choice->device, .phase = n.phase()};
    step.candidate = choice->candidate;
    for (int i = 0; i < n.input_count(); ++i) {
      step.inputs.push_back(n.input(i) ? place_of_source(n.input(i)) : Place{});
    }
    in_place_buffers_.clear();
    for (int o = 0; o < n.output_count(); ++o) {
      Value y = n.output(o);
      Place p;
      if (y && !take_over(n, *choice->kernel, k, o, &p)) p = new_place(n, y);
      if (y) places_[y.id()] = p;
      step.outputs.push_back(p);
    }
    if (const size_t bytes = choice->kernel->scratch_bytes(); bytes > 0)
      step.scratch = {add_buffer(Storage::arena, bytes, 0, n.phase(), step.device), 0};
    step.empty = gives_nothing(n);
    plan_.steps.push_back(std::move(step));
  }

  bool is_view(Node n) const { return n.op() != kCopy && kernel_of(n) == nullptr; }

  /// A copy between devices. Constants are copied at planning time, not in each run. A new value of
  /// a state is written directly to the state, if no later node reads the old value.
  void add_crossing(Node n, int k) {
    const Value x = n.input(0), y = n.output(0);
    const int to = destination(n);
    Place& place = places_[y.id()];
    if (x.role() == Role::constant) {
      place = add_constant(*x.tensor(), to);
      return;
    }
    Step step{.node = n,
              .device = to == 0 ? device_[x.id()] : to,
              .candidate = "copy",
              .copy_bytes = y.type().nbytes(),
              .phase = n.phase()};
    step.inputs = {place_of_source(x)};
    const Value state = updates_state_[y.id()];
    const bool at_once = state && !leaves(y) && last_use_[root_[state.id()]] <= k;
    place = at_once ? places_[state.id()] : new_place(n, y);
    step.outputs = {place};
    plan_.steps.push_back(std::move(step));
  }

  void begin_backward() {
    end_of_phase(Phase::forward);
    in_backward_ = true;
    plan_.backward_begin = plan_.steps.size();
  }

  /// Adds the copies at the end of a phase: updates that were not computed in place; outputs that
  /// are inputs, constants or states; outputs that share bytes with another output; outputs that
  /// are kept apart. So the caller may write to one result without changing another.
  void end_of_phase(Phase phase) {
    for (const Output& o : g().outputs()) {
      if (o.phase != phase) continue;
      Place p = place_of_source(o.value);
      const Storage storage = plan_.buffers[static_cast<size_t>(p.buffer)].storage;
      const Buffer& b = plan_.buffers[static_cast<size_t>(p.buffer)];
      const bool own = storage == Storage::output && b.phase == phase;
      if (!own || kept_apart(o) || !take_result(p, o.value.type().nbytes()))
        p = copy_to_output(o, p, phase);
      plan_.outputs.push_back({o.name, p, o.value.dtype(), o.value.type().dims(), phase});
    }
    for (const Update& u : g().updates()) {
      Node writer = u.value.producer();
      const bool now = writer ? writer.phase() == phase : phase == Phase::forward;
      if (!now) continue;
      const Place to = places_[u.state.id()], from = place_of_source(u.value);
      if (to.buffer == from.buffer) continue;
      add_copy(from, to, u.value.type().nbytes(), phase);
    }
  }

  /// False if some of these bytes belong to a result already.
  bool take_result(Place p, size_t bytes) {
    if (bytes == 0) return true;
    auto& ranges = results_[p.buffer];  // begin → end
    const auto next = ranges.upper_bound(p.offset);
    const bool before = next != ranges.begin() && std::prev(next)->second > p.offset;
    const bool after = next != ranges.end() && next->first < p.offset + bytes;
    if (before || after) return false;
    ranges.emplace(p.offset, p.offset + bytes);
    return true;
  }

  Place copy_to_output(const Output& o, Place from, Phase phase) {
    const auto index = static_cast<uint32_t>(plan_.output_buffers.size());
    const Place to{add_buffer(Storage::output, o.value.type().nbytes(), index, phase), 0};
    plan_.output_buffers.push_back(static_cast<uint32_t>(to.buffer));
    add_copy(from, to, o.value.type().nbytes(), phase);
    return to;
  }

  void add_copy(Place from, Place to, size_t bytes, Phase phase) {
    Step step{.phase = phase};
    step.candidate = "copy";
    step.inputs = {from};
    step.outputs = {to};
    step.copy_bytes = bytes;
    plan_.steps.push_back(std::move(step));
  }

  void set_lifetimes() {
    auto touch = [&](const Place& p, int step) {
      if (p.buffer < 0) return;
      Buffer& b = plan_.buffers[static_cast<size_t>(p.buffer)];
      b.first = std::min(b.first, step);
      b.last = std::max(b.last, step);
    };
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      const Step& step = plan_.steps[s];
      for (const Place& p : step.inputs) touch(p, static_cast<int>(s));
      for (const Place& p : step.outputs) touch(p, static_cast<int>(s));
      touch(step.scratch, static_cast<int>(s));
    }
  }

  Plan plan_;
  const LayoutInput& on_;
  std::vector<int> device_;  // by value id
  std::vector<Node> order_;
  std::vector<Place> places_;          // by value id
  std::vector<char> wanted_outside_;   // by root value id: see leaves()
  std::vector<char> backward_reads_;   // by root value id: backward reads it
  std::vector<Value> overwritten_by_;  // by value id: the output that takes over its buffer
  std::vector<Value> updates_state_;   // by value id: the state whose new value it is
  std::vector<uint32_t> root_;         // by value id
  std::vector<int> last_use_;          // by root value id: position in order_
  std::vector<int> in_place_buffers_;  // buffers that the current step already writes in place
  std::map<int, std::map<size_t, size_t>> results_;  // by buffer: begin and end of each result
  int position_ = 0;
  bool in_backward_ = false;
};

/// Of the host's memory. For the arena, counts the bytes of its values.
size_t bytes_in(const Plan& plan, Storage storage) {
  size_t bytes = 0;
  for (const Buffer& b : plan.buffers)
    if (b.storage == storage && b.device == 0) bytes = saturated_sum(bytes, b.bytes);
  return bytes;
}

/// A plan knows what a run needs, so exceeding the budget is an error before any memory is used.
void check_budget(const Plan& plan, size_t offloaded) {
  const size_t most = current_limits().max_bytes;
  const auto sum = [&](Storage storage) { return bytes_in(plan, storage); };
  size_t all = plan.arena_bytes;
  const size_t states = sum(Storage::state) - offloaded;
  for (const size_t bytes : {sum(Storage::constant), states, sum(Storage::output)})
    all = saturated_sum(all, bytes);
  const size_t input_bytes = sum(Storage::input);
  if (all <= most && input_bytes <= most) return;
  std::vector<std::pair<size_t, Value>> values;
  for (Value v : plan.graph->inputs()) values.emplace_back(v.type().nbytes(), v);
  for (Node n : schedule(*plan.graph)) {
    for (int i = 0; i < n.output_count(); ++i) {
      if (n.output(i)) values.emplace_back(n.output(i).type().nbytes(), n.output(i));
    }
  }
  const size_t count = std::min<size_t>(values.size(), 3);
  std::partial_sort(values.begin(), values.begin() + static_cast<int64_t>(count), values.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string greatest;
  for (size_t i = 0; i < count; ++i) {
    const Value v = values[i].second;
    greatest +=
        fmt::format("{}{} {} ({})", i == 0 ? "" : ", ", to_string(v.type()),
                    v.name().empty() ? "without a name" : v.name(), bytes_text(values[i].first));
  }
  const Node first = count > 0 ? values[0].second.producer() : Node();
  throw OutOfMemoryError(
      {.what = "One run exceeds the memory budget.",
       .node = first       ? first.name()
               : count > 0 ? values[0].second.name()
                           : "",
       .op = first ? first.op() : "",
       .expected = "at most " + bytes_text(most),
       .received = fmt::format(
           "{} of inputs; {} of intermediate values, {} of constants, {} of parameters and "
           "moments, {} of results; the greatest: {}",
           bytes_text(input_bytes), bytes_text(plan.arena_bytes),
           bytes_text(sum(Storage::constant)), bytes_text(states), bytes_text(sum(Storage::output)),
           greatest),
       .remedy = "Use a smaller batch or sequence length, or raise Limits::max_bytes "
                 "(max_bytes= in Python, --max-bytes)."});
}

/// Logs what STEEP_LOGS asks for.
void tell(const Plan& plan) {
  if (logs(Log::plan)) log(Log::plan, to_text(*plan.graph) + "\n" + to_text(plan));
  if (logs(Log::memory)) {
    const auto sum = [&](Storage storage) {
      size_t bytes = 0;
      for (const Buffer& b : plan.buffers) bytes += b.storage == storage ? b.bytes : 0;
      return bytes_text(bytes);
    };
    log(Log::memory,
        fmt::format("arena {} for {} of values, results {}, constants {}, states {}",
                    bytes_text(plan.arena_bytes), sum(Storage::arena), sum(Storage::output),
                    sum(Storage::constant), sum(Storage::state)));
  }
  if (!logs(Log::kernels)) return;
  std::map<std::string, size_t> counts;
  for (const Step& step : plan.steps) {
    const std::string_view device =
        (step.device == 0 ? plan.devices.host()
                          : *plan.devices.others()[static_cast<size_t>(step.device) - 1])
            .provider();
    ++counts[fmt::format("{}[{}] {}", step.node ? step.node.op() : "copy", step.candidate, device)];
  }
  for (const auto& [kernel, count] : counts)
    log(Log::kernels, fmt::format("{:5} × {}", count, kernel));
  for (const Declined& d : plan.declined)
    log(Log::kernels, fmt::format("{} left {} ({}): {}", d.device, d.node, d.op, d.reason));
}

}  // namespace

KernelOf kernels_of(const Graph& graph, const KernelGraph& kernel_graph) {
  KernelOf kernels(graph.node_slots(), nullptr);
  for (const auto& [id, kernel] : kernel_graph.kernels) kernels[id] = &kernel;
  return kernels;
}

ViewOf views_of(const Graph& graph, const KernelGraph& kernel_graph) {
  ViewOf views(graph.node_slots(), nullptr);
  for (const auto& [id, offsets] : kernel_graph.views) views[id] = &offsets;
  return views;
}

Plan lay_out(Graph graph, const LayoutInput& on) { return Planner(std::move(graph), on).run(); }

size_t run_bytes(const Plan& plan) {
  size_t bytes = plan.arena_bytes;
  for (const Storage storage : {Storage::input, Storage::constant, Storage::state, Storage::output})
    bytes = saturated_sum(bytes, bytes_in(plan, storage));
  return bytes;
}

Plan complete(Plan plan, KernelGraph kernel_graph, size_t offloaded) {
  for (Step& step : plan.steps) {
    if (!step.node) continue;
    if (const auto it = kernel_graph.kernels.find(step.node.id()); it != kernel_graph.kernels.end())
      step.kernel = std::move(it->second.kernel);
  }
  plan.declined = std::move(kernel_graph.declined);
  check_budget(plan, offloaded);
  tell(plan);
  return plan;
}

}  // namespace steep
