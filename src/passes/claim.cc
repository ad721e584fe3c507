// Lets devices fuse nodes: the nodes that a device claims become the body of one steep.Claimed
// node.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "device/boundary.h"
#include "ops/build.h"
#include "ops/op_def.h"
#include "passes/pipeline.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

[[noreturn]] void refuse(const GraphView::Claim& claim, Node n, const char* why,
                         std::string_view device) {
  throw ProviderError({.what = "A provider claims nodes that cannot become one node.",
                       .node = n.name(),
                       .op = n.op(),
                       .received = fmt::format("{}, of {}, by {}: {}", claim.name,
                                               counted(claim.nodes.size(), "node"), device, why),
                       .remedy = "Ask the plug-in's author."});
}

class Claimer {
 public:
  Claimer(Graph& g, std::string_view device) : g_(g), device_(device), users_(g.users()) {
    for (const Output& o : g.outputs()) results_.insert(o.value.id());
    for (const Update& u : g.updates()) results_.insert(u.value.id());
    const auto order = g.nodes();
    for (size_t i = 0; i < order.size(); ++i) position_[order[i].id()] = i;
  }

  void apply(const GraphView::Claim& claim) {
    std::vector<Node> nodes = claim.nodes;
    std::sort(nodes.begin(), nodes.end(),
              [&](Node a, Node b) { return position_.at(a.id()) < position_.at(b.id()); });
    check(claim, nodes);
    auto body = std::make_shared<Graph>();
    std::unordered_map<uint32_t, Value> inner;  // by value id
    std::vector<Value> inputs, outputs;
    for (Node n : nodes) {
      std::vector<Value> operands;
      for (int i = 0; i < n.input_count(); ++i) {
        const Value x = n.input(i);
        if (x && inner.count(x.id()) == 0) {
          inner[x.id()] = body->add_input(x.name(), x.type());
          inputs.push_back(x);
        }
        operands.push_back(x ? inner[x.id()] : Value());
      }
      const Node copy = body->add_node(n.op(), operands, n.output_count(), n.attrs(), n.name());
      for (int i = 0; i < n.output_count(); ++i) {
        const Value y = n.output(i);
        if (!y) continue;
        body->set_type(copy.output(i), y.type());
        inner[y.id()] = copy.output(i);
        if (!read_outside(y, nodes)) continue;
        body->add_output(y.name(), copy.output(i));
        outputs.push_back(y);
      }
    }
    if (outputs.empty()) refuse(claim, nodes[0], "no node reads a result", device_);
    Graph::Scope scope(g_, nodes.back().phase(), nodes.back().name());
    const auto results = apply_n("steep.Claimed", inputs, static_cast<int>(outputs.size()),
                                 {{"name", claim.name}, {"body", Body(body)}});
    g_.place_like(results[0].producer(), nodes.back());
    for (size_t i = 0; i < outputs.size(); ++i) g_.replace_uses(outputs[i], results[i]);
    for (Node n : nodes) g_.erase(n);
  }

 private:
  void check(const GraphView::Claim& claim, const std::vector<Node>& nodes) {
    std::unordered_set<uint32_t> within;
    for (Node n : nodes) {
      const OpDef* def = find_op(n.op());
      if (!within.insert(n.id()).second || !claimed_.insert(n.id()).second)
        refuse(claim, n, "a node is claimed twice", device_);
      if (n.phase() != nodes[0].phase()) refuse(claim, n, "of two phases", device_);
      if (def == nullptr || def->dynamic || !def->updates_input.empty())
        refuse(claim, n, "a node that updates a state, or runs on its own", device_);
    }
    // A path from these nodes to outside readers must not lead back to one of them.
    std::vector<Node> stack = nodes;
    std::unordered_set<uint32_t> ids;
    while (!stack.empty()) {
      const Node n = stack.back();
      stack.pop_back();
      const bool inside = within.count(n.id()) != 0;
      for (int i = 0; i < n.output_count(); ++i) {
        if (!n.output(i)) continue;
        for (Node user : users_[n.output(i).id()]) {
          if (within.count(user.id()) != 0) {
            if (!inside)
              refuse(claim, user, "one depends on another through a node outside of the claim",
                     device_);
          } else if (ids.insert(user.id()).second) {
            stack.push_back(user);
          }
        }
      }
    }
  }

  bool read_outside(Value y, const std::vector<Node>& nodes) const {
    if (results_.count(y.id()) != 0) return true;
    return std::any_of(users_[y.id()].begin(), users_[y.id()].end(), [&](Node user) {
      return std::find(nodes.begin(), nodes.end(), user) == nodes.end();
    });
  }

  Graph& g_;
  std::string_view device_;
  std::vector<std::vector<Node>> users_;           // before the first claim
  std::unordered_set<uint32_t> results_;           // values that are outputs or updates
  std::unordered_map<uint32_t, size_t> position_;  // by node id
  std::unordered_set<uint32_t> claimed_;           // node ids
};

}  // namespace

void claim(Graph& graph, const Devices& devices) {
  for (const auto& device : devices.others()) {
    if (!device->fuses()) continue;
    const GraphView view(graph);
    device->fuse(view.get());
    Claimer claimer(graph, device->provider());
    for (const GraphView::Claim& c : view.claims()) claimer.apply(c);
  }
}

}  // namespace steep
