#include <fmt/format.h>

#include <unordered_set>

#include "ir/graph.h"
#include "steep/error.h"

namespace steep {

void verify(const Graph& graph, std::string_view after) {
  auto fail = [&](const std::string& what, const std::string& node, const std::string& op) {
    throw InternalError({.what = fmt::format("{} (found after {}).", what, after),
                         .node = node,
                         .op = op,
                         .remedy = "This is a bug in Steep. Please report it with the model."});
  };
  std::unordered_set<uint32_t> ids;
  for (Node n : graph.nodes()) {
    for (int i = 0; i < n.input_count(); ++i) {
      Value x = n.input(i);
      if (!x) continue;
      if (x.id() >= graph.value_count())
        fail("A node reads a value that does not exist", n.name(), n.op());
      if (x.role() == Role::temp && ids.count(x.id()) == 0) {
        fail(fmt::format("A node reads {}, which no node before it computes", x.name()), n.name(),
             n.op());
      }
      if (x.role() == Role::input && n.phase() == Phase::forward &&
          graph.input_phase(x) == Phase::backward) {
        fail(fmt::format("A forward node reads the backward input {}", x.name()), n.name(), n.op());
      }
    }
    for (int i = 0; i < n.output_count(); ++i) {
      Value y = n.output(i);
      if (!y) continue;
      if (y.producer() != n) fail("A value names another producer", n.name(), n.op());
      if (y.dtype() == DType::undefined) {
        fail(fmt::format("Value {} has no dtype", y.name()), n.name(), n.op());
      }
      ids.insert(y.id());
    }
  }
  auto exists = [&](Value v) { return v.role() != Role::temp || ids.count(v.id()) != 0; };
  for (const Output& o : graph.outputs()) {
    if (!exists(o.value)) fail("An output reads a value that no node computes", o.name, "");
  }
  for (const Update& u : graph.updates()) {
    if (u.state.role() != Role::state)
      fail("An update writes a value that is not a state", u.state.name(), "");
    if (!exists(u.value)) fail("An update reads a value that no node computes", u.state.name(), "");
  }
}

}  // namespace steep
