#include <algorithm>
#include <tuple>
#include <utility>

#include "plan/plan.h"

namespace steep {
namespace {

/// Whether a reader of `state` depends on `writer`; then the write cannot wait for all readers.
/// `marks`, by node id: the writer for which a node was visited last.
bool reader_depends_on(Node writer, Value state, const std::vector<std::vector<Node>>& users,
                       std::vector<uint32_t>& marks) {
  std::vector<Node> stack{writer};
  while (!stack.empty()) {
    Node n = stack.back();
    stack.pop_back();
    for (int i = 0; i < n.output_count(); ++i) {
      if (!n.output(i)) continue;
      for (Node user : users[n.output(i).id()]) {
        if (std::exchange(marks[user.id()], writer.id()) == writer.id()) continue;
        for (int k = 0; k < user.input_count(); ++k) {
          if (user.input(k) == state) return true;
        }
        stack.push_back(user);
      }
    }
  }
  return false;
}

/// The dependencies between nodes. A node is represented by its position in the graph's order.
struct Dependencies {
  std::vector<std::vector<size_t>> after;  ///< by node: the nodes that wait for it
  std::vector<int> missing;                ///< by node: the number of nodes that it waits for
  std::vector<bool> writes;                ///< by node: whether it overwrites a state

  void add(size_t from, size_t to) {
    after[from].push_back(to);
    ++missing[to];
  }
};

Dependencies find_dependencies(const Graph& graph, const std::vector<Node>& order) {
  const auto users = graph.users();
  std::vector<size_t> position;
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i].id() >= position.size()) position.resize(order[i].id() + 1, SIZE_MAX);
    position[order[i].id()] = i;
  }
  const size_t count = order.size();
  Dependencies dependencies{std::vector<std::vector<size_t>>(count), std::vector<int>(count, 0),
                            std::vector<bool>(count, false)};
  for (size_t i = 0; i < count; ++i) {
    for (int k = 0; k < order[i].input_count(); ++k) {
      if (Value x = order[i].input(k); x && x.producer())
        dependencies.add(position[x.producer().id()], i);
    }
  }
  std::vector<uint32_t> marks(graph.node_slots(), UINT32_MAX);
  for (const Update& u : graph.updates()) {
    Node writer = u.value.producer();
    if (!writer) continue;
    dependencies.writes[position[writer.id()]] = true;
    if (reader_depends_on(writer, u.state, users, marks)) continue;
    for (Node reader : users[u.state.id()]) {
      if (reader != writer) dependencies.add(position[reader.id()], position[writer.id()]);
    }
  }
  return dependencies;
}

}  // namespace

std::vector<Node> schedule(const Graph& graph) {
  const std::vector<Node> order = graph.nodes();
  Dependencies waiting = find_dependencies(graph, order);
  std::vector<size_t> ready;
  // A weight is updated as soon as its gradient is known and the last reader of the weight has run:
  // then the gradient is still in the cache, and its memory is free for the next gradient.
  const auto rank = [&](size_t i) { return std::tuple(order[i].phase(), !waiting.writes[i], i); };
  const auto later = [&](size_t a, size_t b) { return rank(a) > rank(b); };
  for (size_t i = 0; i < order.size(); ++i) {
    if (waiting.missing[i] == 0) ready.push_back(i);
  }
  std::make_heap(ready.begin(), ready.end(), later);
  std::vector<Node> out;
  out.reserve(order.size());
  while (!ready.empty()) {
    std::pop_heap(ready.begin(), ready.end(), later);
    const size_t i = ready.back();
    ready.pop_back();
    out.push_back(order[i]);
    for (size_t d : waiting.after[i]) {
      if (--waiting.missing[d] == 0) {
        ready.push_back(d);
        std::push_heap(ready.begin(), ready.end(), later);
      }
    }
  }
  // If readers of two states each wait for the writer of the other state, there is no such order.
  // The insertion order is returned, and those updates are copied.
  return out.size() == order.size() ? out : order;
}

}  // namespace steep
