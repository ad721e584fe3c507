#include "flow/dynamic.h"

#include <fmt/format.h>

#include <cstring>

#include "passes/specialise.h"
#include "runtime/budget.h"
#include "steep/error.h"

namespace steep {
namespace {

// Operands that determine a shape are small; larger operands are data.
constexpr int64_t kMaxShapeData = 4096;

constexpr size_t kMaxReady = 16;

}  // namespace

Type type_of(const Datum& d) {
  if (!d.is_tensor()) return {};
  return {d.tensor().dtype(), to_shape(d.tensor().dims())};
}

bool same_type(const Type& a, const Type& b) {
  return a.dtype == b.dtype && a.shape.has_value() == b.shape.has_value() &&
         (!a.shape || provably_equal(*a.shape, *b.shape));
}

NodePlans::Ready* NodePlans::find(const DynamicCall& call) {
  for (auto it = ready_.begin(); it != ready_.end(); ++it) {
    bool fits = it->types.size() == call.inputs.size();
    for (size_t i = 0; fits && i < call.inputs.size(); ++i) {
      const Tensor& constant = it->constants[i];
      fits = same_type(it->types[i], type_of(call.inputs[i])) &&
             (constant.size() == 0 || !constant.defined() ||
              std::memcmp(constant.data(), call.tensor(i).data(), constant.nbytes()) == 0);
    }
    if (!fits) continue;
    ready_.splice(ready_.begin(), ready_, it);
    return &ready_.front();
  }
  return nullptr;
}

bool NodePlans::make(const DynamicCall& call, bool all_constant) {
  Ready ready;
  Graph g;
  std::vector<Value> inputs;
  std::vector<Type> types;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    ready.types.push_back(type_of(call.inputs[i]));
    ready.constants.emplace_back();
    if (!call.has(i)) {
      inputs.emplace_back();
      continue;
    }
    const Tensor& t = call.tensor(i);
    if (all_constant || (!is_float(t.dtype()) && t.size() <= kMaxShapeData)) {
      ready.constants.back() = t.clone();  // a copy, because the caller may change the tensor
      inputs.push_back(g.add_constant(ready.constants.back()));
    } else {
      types.push_back(ready.types.back());
      inputs.push_back(g.add_input("x", types.back()));
    }
  }
  const Node n = call.node;
  const Node copy = g.add_node(n.op(), inputs, n.output_count(), n.attrs(), n.name());
  for (int i = 0; i < n.output_count(); ++i) g.add_output("y", copy.output(i));
  const Devices host = Devices::host_alone();
  Specialised s = specialise_known(g, types, host);
  if (!s.deferred.empty()) return false;
  ready.executable =
      std::make_unique<Executable>(make_plan(std::move(s.graph), host), call.context.pool);
  ready_.push_front(std::move(ready));
  if (ready_.size() > kMaxReady) ready_.pop_back();
  return true;
}

std::vector<Datum> NodePlans::run(const DynamicCall& call) {
  Ready* ready = find(call);
  if (ready == nullptr) {
    if (!make(call, false) && !make(call, true)) throw_data_dependent(call.node);
    ready = &ready_.front();
  }
  Executable& exe = *ready->executable;
  std::unique_ptr<Frame> frame = exe.acquire();
  size_t next = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.has(i) && !ready->constants[i].defined())
      exe.bind_input(*frame, next++, call.tensor(i));
  }
  std::vector<Datum> results;
  for (Tensor& t : exe.run(*frame, Phase::forward, call.context.run))
    results.emplace_back(std::move(t));
  exe.release(std::move(frame));
  return results;
}

void DynamicCall::fail(std::string what, std::string expected, std::string received,
                       std::string remedy) const {
  throw DataError({.what = std::move(what),
                   .node = node.name(),
                   .op = node.op(),
                   .expected = std::move(expected),
                   .received = std::move(received),
                   .remedy = std::move(remedy)});
}

const Tensor& DynamicCall::tensor(size_t i) const {
  if (i >= inputs.size() || !inputs[i].is_tensor()) {
    fail("A node needs a tensor.", fmt::format("a tensor as input {}", i),
         i < inputs.size() ? inputs[i].text() : "nothing");
  }
  return inputs[i].tensor();
}

const Datum::Items& DynamicCall::items(size_t i) const {
  if (i >= inputs.size() || !inputs[i].is_sequence()) {
    fail("A node needs a sequence.", fmt::format("a sequence as input {}", i),
         i < inputs.size() ? inputs[i].text() : "nothing");
  }
  return inputs[i].items();
}

int64_t DynamicCall::integer(size_t i) const {
  const Tensor& t = tensor(i);
  if (t.size() != 1 || is_float(t.dtype()) || is_narrow_float(t.dtype())) {
    fail("A node needs a single integer.", fmt::format("one integer as input {}", i),
         inputs[i].text());
  }
  return t.to_ints()[0];
}

namespace {

std::vector<Datum> run_rule(const DynamicCall& call) {
  if (const DynamicRule rule = find_dynamic_rule(call.node.op())) return rule(call);
  if (call.context.devices.host().data_shaped(call.node.op()) != nullptr) {
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < call.inputs.size(); ++i)
      inputs.push_back(call.has(i) ? call.tensor(i) : Tensor());
    std::vector<Datum> results;
    for (Tensor& t : run_data_shaped(call.context.devices.host(), call.node, inputs))
      results.emplace_back(std::move(t));
    return results;
  }
  return call.plans.run(call);
}

}  // namespace

std::vector<Datum> run_dynamic(const DynamicCall& call) {
  poll();
  return at_node(call.node, [&] { return run_rule(call); });
}

}  // namespace steep
