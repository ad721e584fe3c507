#include "flow/segment.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "ir/part.h"
#include "ops/op_def.h"
#include "passes/specialise.h"
#include "steep/error.h"

namespace steep {
namespace {

bool runs_alone(Node n) {
  const OpDef* def = find_op(n.op());
  return def != nullptr && def->dynamic;
}

bool is_optimizer(Node n) {
  const OpDef* def = find_op(n.op());
  return def != nullptr && !def->updates_input.empty();
}

/// The phase of an update. A value that an earlier part computed is written in the present phase.
Phase phase_of(const Update& u, Phase present) {
  const Node writer = u.value.producer();
  return writer ? writer.phase() : present;
}

/// By value id: its index in `values`.
std::unordered_map<uint32_t, size_t> places_of(const std::vector<Value>& values) {
  std::unordered_map<uint32_t, size_t> places;
  for (size_t i = 0; i < values.size(); ++i) places.emplace(values[i].id(), i);
  return places;
}

/// Begins with the backward inputs, whether a node reads them or not.
Part begin_part(const Graph& from, size_t fed_later) {
  Part part(from);
  for (size_t i = 0; i < fed_later; ++i) part.take(from.inputs()[i]);
  return part;
}

/// A frame of an executable, for one run.
class Borrowed {
 public:
  explicit Borrowed(Executable& exe) : exe_(exe), frame_(exe.acquire()) {}
  ~Borrowed() { exe_.release(std::move(frame_)); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Frame& frame() { return *frame_; }

 private:
  Executable& exe_;
  std::unique_ptr<Frame> frame_;
};

}  // namespace

struct Segment::Cut {
  std::vector<Type> types;                 // by input of remaining_
  std::unique_ptr<Executable> executable;  // null: nothing to run
  std::vector<size_t> planned_inputs;  // by input of `executable`: index of an input of remaining_
  std::shared_ptr<Segment> next;
  std::vector<Source> next_inputs;  // by input of next
  bool phase_ends = true;           // no node of the phase remains
};

Segment::Segment(const Graph& graph, Phase phase, size_t fed_later, bool tried)
    : graph_(graph), phase_(phase), fed_later_(fed_later) {
  std::vector<char> there(graph_.value_count(), 1);
  const std::vector<Node> nodes = graph_.nodes();
  for (Node n : nodes) {
    for (int i = 0; i < n.output_count(); ++i) there[n.output(i).id()] = 0;
  }
  const std::vector<char> before = there;
  std::unordered_set<uint32_t> ids;
  auto all = [](Node n, const std::vector<char>& known) {
    for (int i = 0; i < n.input_count(); ++i) {
      if (n.input(i) && !known[n.input(i).id()]) return false;
    }
    return true;
  };
  for (Node n : nodes) {
    if (n.phase() != phase_ || is_optimizer(n)) continue;
    const bool alone = runs_alone(n) ? all(n, there) : tried && all(n, before);
    if (!alone) continue;
    dynamic_nodes_.push_back(n);
    ids.insert(n.id());
    for (int i = 0; i < n.output_count(); ++i) there[n.output(i).id()] = 1;
  }
  Part remaining = begin_part(graph_, fed_later_);
  for (Node n : nodes) {
    if (ids.count(n.id()) == 0) remaining.add(n, n.phase());
  }
  for (const Output& o : graph_.outputs())
    remaining.graph().add_output(o.name, remaining.take(o.value), o.phase);
  for (const Update& u : graph_.updates())
    remaining.graph().add_update(remaining.take(u.state), remaining.take(u.value));
  for (Value v : remaining.sources()) remaining_inputs_.push_back(v.id());
  remaining_ = std::move(remaining.graph());
}

std::shared_ptr<Segment> Segment::whole(const Graph& graph) {
  Part part(graph);
  size_t fed_later = 0;
  for (Value v : graph.inputs()) {
    if (graph.input_phase(v) != Phase::backward) continue;
    part.take(v);
    ++fed_later;
  }
  for (Value v : graph.inputs()) part.take(v);
  for (Node n : graph.nodes()) part.add(n, n.phase());
  for (const Output& o : graph.outputs())
    part.graph().add_output(o.name, part.take(o.value), o.phase);
  for (const Update& u : graph.updates())
    part.graph().add_update(part.take(u.state), part.take(u.value));
  return std::make_shared<Segment>(part.graph(), Phase::forward, fed_later, false);
}

bool Segment::finished() const {
  for (Node n : remaining_.nodes()) {
    if (n.phase() == phase_) return false;
  }
  for (const Update& u : remaining_.updates()) {
    if (phase_of(u, phase_) == phase_) return false;
  }
  return true;
}

/// By value id: the number of readers among dynamic nodes and the remaining graph.
std::vector<int> Segment::count_readers() const {
  std::vector<int> readers(graph_.value_count(), 0);
  for (Node n : dynamic_nodes_) {
    for (int i = 0; i < n.input_count(); ++i) {
      if (n.input(i)) ++readers[n.input(i).id()];
    }
  }
  for (uint32_t id : remaining_inputs_) ++readers[id];
  return readers;
}

std::vector<Datum> Segment::run_dynamic_nodes(std::vector<Datum> inputs,
                                              const RunContext& context) {
  std::vector<Datum> there(graph_.value_count());
  for (size_t i = 0; i < inputs.size(); ++i) there[graph_.inputs()[i].id()] = std::move(inputs[i]);
  inputs.clear();
  std::vector<int> readers = count_readers();
  for (Node n : dynamic_nodes_) {
    std::vector<Datum> operands;
    std::vector<Tensor> lasting;  // the caller may write to results, and a step to states
    for (int i = 0; i < n.input_count(); ++i) {
      const Value x = n.input(i);
      if (!x) {
        operands.emplace_back();
      } else if (x.role() == Role::constant || x.role() == Role::state) {
        lasting.push_back(x.role() == Role::state ? context.states.at(x.name()) : *x.tensor());
        operands.emplace_back(lasting.back());
      } else {
        operands.push_back(there[x.id()]);
        if (--readers[x.id()] == 0) there[x.id()] = Datum();
      }
    }
    std::vector<bool> wanted;
    for (int i = 0; i < n.output_count(); ++i) wanted.push_back(readers[n.output(i).id()] > 0);
    std::vector<Datum> results =
        run_dynamic({n, operands, context, std::move(wanted), node_plans_[n.id()]});
    copy_if_of(lasting, results);
    for (int i = 0; i < n.output_count(); ++i) {
      const uint32_t y = n.output(i).id();
      if (readers[y] > 0) there[y] = std::move(results.at(static_cast<size_t>(i)));
    }
  }
  std::vector<Datum> result;
  for (uint32_t id : remaining_inputs_) result.push_back(there[id]);
  return result;
}

std::shared_ptr<Segment::Cut> Segment::cut_for(std::span<const Datum> inputs,
                                               const RunContext& context) {
  std::vector<Type> types;
  for (const Datum& d : inputs) types.push_back(type_of(d));
  for (auto it = cuts_.begin(); it != cuts_.end(); ++it) {
    if (!std::equal(types.begin(), types.end(), (*it)->types.begin(), same_type)) continue;
    if (it != cuts_.begin()) cuts_.splice(cuts_.begin(), cuts_, it);
    return cuts_.front();
  }
  cuts_.push_front(make_cut(std::move(types), context));
  if (cuts_.size() > std::max<size_t>(context.cache_size, 1)) cuts_.pop_back();
  return cuts_.front();
}

std::shared_ptr<Segment::Cut> Segment::make_cut(std::vector<Type> types,
                                                const RunContext& context) const {
  auto cut = std::make_shared<Cut>();
  Specialised s = specialise_known(remaining_, types, context.devices, phase_);
  Graph& g = s.graph;
  std::unordered_set<uint32_t> deferred(s.deferred.begin(), s.deferred.end());
  std::vector<Phase> update_phases;
  for (const Update& u : remaining_.updates()) update_phases.push_back(phase_of(u, phase_));

  // Splits the graph: nodes of this phase with known types are planned; the others go to `next`,
  // and read results of the planned ones.
  Part plan_part(g, true);
  Part next = begin_part(g, fed_later_);
  std::vector<char> made(g.value_count(), 0);
  for (Node n : g.nodes()) {
    if (deferred.count(n.id()) != 0) {
      next.add(n, n.phase());
      cut->phase_ends = cut->phase_ends && n.phase() != phase_;
      continue;
    }
    plan_part.add(n, Phase::forward);
    for (int i = 0; i < n.output_count(); ++i) made[n.output(i).id()] = 1;
  }
  for (const Output& o : g.outputs()) {
    next.graph().add_output(o.name, next.take(o.value), o.phase);
  }
  for (size_t i = 0; i < g.updates().size(); ++i) {
    const Update& u = g.updates()[i];
    Part& part = cut->phase_ends && update_phases[i] == phase_ ? plan_part : next;
    const Value state = part.take(u.state);
    part.graph().add_update(state, part.take(u.value));
  }
  size_t outputs = 0;
  const auto place = places_of(g.inputs());
  for (Value v : next.sources()) {
    if (made[v.id()] != 0) {
      cut->next_inputs.push_back({true, outputs++});
      plan_part.graph().add_output(v.name(), plan_part.take(v));
    } else {
      cut->next_inputs.push_back({false, place.at(v.id())});
    }
  }
  for (Value v : plan_part.sources()) cut->planned_inputs.push_back(place.at(v.id()));
  if (plan_part.graph().node_count() > 0 || !plan_part.graph().updates().empty()) {
    run_passes(plan_part.graph(), context.passes);
    cut->executable = std::make_unique<Executable>(
        make_plan(std::move(plan_part.graph()), context.devices, std::move(s.decomposed)),
        context.pool);
  }
  cut->next = std::make_shared<Segment>(next.graph(), cut->phase_ends ? Phase::backward : phase_,
                                        fed_later_, !cut->phase_ends);
  cut->types = std::move(types);
  return cut;
}

namespace {

/// The graph's outputs of a phase that has ended. No node computes them any more:
/// they are inputs, constants or states.
std::vector<Datum> outputs_of(const Graph& g, Phase phase, std::span<const Datum> inputs,
                              const RunContext& context) {
  std::vector<Datum> results;
  const auto place = places_of(g.inputs());
  for (const Output& o : g.outputs()) {
    if (o.phase != phase) continue;
    if (o.value.role() == Role::constant) {
      results.emplace_back(o.value.tensor()->clone());
    } else if (o.value.role() == Role::state) {
      results.emplace_back(context.states.at(o.value.name()).clone());
    } else {
      results.push_back(inputs[place.at(o.value.id())]);
    }
  }
  return results;
}

}  // namespace

std::vector<Datum> Segment::run_planned(const Cut& cut, std::span<const Datum> inputs,
                                        const RunContext& context) {
  std::vector<Tensor> results;
  if (cut.executable) {
    const Graph& g = *cut.executable->plan().graph;
    Borrowed loan(*cut.executable);
    for (size_t i = 0; i < cut.planned_inputs.size(); ++i) {
      cut.executable->bind_input(loan.frame(), i, inputs[cut.planned_inputs[i]].tensor());
    }
    for (size_t i = 0; i < g.states().size(); ++i) {
      Tensor state = context.states.at(g.states()[i].name());
      cut.executable->bind_state(loan.frame(), i, state.data());
    }
    results = cut.executable->run(loan.frame(), Phase::forward, context.run);
  }
  std::vector<Datum> next;
  for (const Source& s : cut.next_inputs) {
    next.push_back(s.made ? Datum(results[s.index]) : inputs[s.index]);
  }
  return next;
}

std::vector<Datum> Segment::run(SegmentPosition& at, const RunContext& context) {
  const Phase phase = at.segment->phase_;
  for (;;) {
    Segment& s = *at.segment;
    std::vector<Datum> inputs = s.run_dynamic_nodes(std::move(at.inputs), context);
    if (s.finished()) {
      if (!s.next_phase_) {
        s.next_phase_ =
            std::make_shared<Segment>(s.remaining_, Phase::backward, s.fed_later_, false);
      }
      std::vector<Datum> results = outputs_of(s.remaining_, phase, inputs, context);
      at = {s.next_phase_, std::move(inputs)};
      return results;
    }
    const std::shared_ptr<Cut> cut = s.cut_for(inputs, context);
    at = {cut->next, run_planned(*cut, inputs, context)};
    if (cut->phase_ends) return outputs_of(cut->next->graph_, phase, at.inputs, context);
    if (!cut->executable && cut->next->dynamic_nodes_.empty())
      throw_data_dependent(cut->next->graph_.nodes()[0]);
  }
}

std::string Segment::text() const {
  std::string all;
  for (Node n : dynamic_nodes_) all += fmt::format("alone: {} ({})\n", n.name(), n.op());
  for (const auto& cut : cuts_) {
    if (cut->executable)
      all += to_text(*cut->executable->plan().graph) + "\n" + to_text(cut->executable->plan());
    all += cut->next->text();
  }
  return all;
}

std::vector<const Plan*> Segment::plans() const {
  std::vector<const Plan*> all;
  for (const auto& cut : cuts_) {
    if (cut->executable) all.push_back(&cut->executable->plan());
    const std::vector<const Plan*> later = cut->next->plans();
    all.insert(all.end(), later.begin(), later.end());
  }
  if (next_phase_) {
    const std::vector<const Plan*> later = next_phase_->plans();
    all.insert(all.end(), later.begin(), later.end());
  }
  return all;
}

size_t Segment::size() const {
  size_t count = cuts_.size();
  for (const auto& cut : cuts_) count += cut->next->size();
  return count + (next_phase_ ? next_phase_->size() : 0);
}

}  // namespace steep
