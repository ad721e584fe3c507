// The graph: values and the nodes that make them. Everything between import and plan is a Graph.
//
//   Graph g;
//   Value x = g.add_input("x", {DType::f32, Shape{Dim::symbol("batch"), 4}});
//   Value y = apply("Relu", {x});           // ops/build.h: adds a node, infers its output types
//   g.add_output("y", y);
//   std::cout << to_text(g);
//
// `Value` and `Node` are handles (graph pointer and index): cheap to copy, valid for as long as the
// graph is neither destroyed, moved nor compacted. Not thread-safe; a const Graph may be read by
// many threads.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/attr.h"
#include "ir/type.h"

namespace steep {

class Node;
class Value;

/// Where a value's bytes come from.
enum class Role : uint8_t {
  temp,      ///< made by a node
  input,     ///< fed by the caller at each run
  constant,  ///< fixed; holds its tensor
  state,     ///< lives across runs and may be updated in place: a parameter, an optimizer moment
};

/// Part of a partial execution to which a node belongs. `forward` nodes run first; between the two
/// phases the caller may do other work; `backward` nodes run once the caller has fed the backward
/// inputs.
enum class Phase : uint8_t { forward, backward };

/// Handle to a value. A default-constructed Value is null and stands for an absent optional input,
/// an unused output or "no gradient".
class Value {
 public:
  Value() = default;
  Value(Graph* graph, uint32_t id) : graph_(graph), id_(id) {}

  explicit operator bool() const { return graph_ != nullptr; }
  bool operator==(const Value&) const = default;

  Graph& graph() const { return *graph_; }
  uint32_t id() const { return id_; }

  const std::string& name() const;
  const Type& type() const;
  DType dtype() const { return type().dtype; }
  /// Throws ModelError with the value's name when the rank is unknown.
  int64_t rank() const;
  const Shape& shape() const;  ///< as rank()
  Role role() const;
  /// Tensor of a constant or initial tensor of a state; nullptr otherwise.
  const Tensor* tensor() const;
  /// The node that computes the value; a null handle for inputs, constants and states.
  Node producer() const;
  int output_index() const;  ///< which output of producer()

 private:
  Graph* graph_ = nullptr;
  uint32_t id_ = 0;
};

/// Handle to a node.
class Node {
 public:
  Node() = default;
  Node(Graph* graph, uint32_t id) : graph_(graph), id_(id) {}

  explicit operator bool() const { return graph_ != nullptr; }
  bool operator==(const Node&) const = default;

  Graph& graph() const { return *graph_; }
  uint32_t id() const { return id_; }

  const std::string& name() const;
  /// Canonical operator: ONNX's name at the newest opset ("Softmax"), or "steep.Name" for our own.
  const std::string& op() const;
  Phase phase() const;
  const Attrs& attrs() const;
  Attrs& mutable_attrs() const;

  int input_count() const;
  int output_count() const;
  Value input(int i) const;   ///< null when i is out of range or the optional input is absent
  Value output(int i) const;  ///< null when i is out of range or the output is unused
  void set_input(int i, Value v) const;

 private:
  Graph* graph_ = nullptr;
  uint32_t id_ = 0;
};

/// A named result of the graph.
struct Output {
  std::string name;
  Value value;
  Phase phase = Phase::forward;
  /// The caller may overwrite this forward result before backward runs. If backward reads the
  /// value, the caller gets a copy.
  bool may_change = false;
};

/// After a run `state` holds `value`. The planner lets the producer of `value` write in place.
struct Update {
  Value state;
  Value value;
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph& other);
  Graph(Graph&& other);  // NOLINT(*-noexcept-move-*): an empty std::deque takes memory
  Graph& operator=(Graph other);

  // --- building ---------------------------------------------------------------------------------

  Value add_input(std::string name, Type type, Phase phase = Phase::forward);
  /// A backward input: the gradient of an output. It has the type that the forward value `like`
  /// gets.
  Value add_gradient_input(std::string name, Value like);
  Value add_constant(Tensor tensor, std::string name = "");
  /// A state, whose bytes the caller binds before the first run.
  Value add_state(std::string name, Type type);
  /// Adds a node at the end. Output types are left empty: ops/build.h's apply() infers them.
  /// `inputs` may hold null values. The name is made unique. Throws ModelError past the node limit.
  Node add_node(std::string op, std::span<const Value> inputs, int output_count, Attrs attrs = {},
                std::string name = "");
  void add_output(std::string name, Value value, Phase phase = Phase::forward);
  void let_output_change(size_t index) { outputs_[index].may_change = true; }
  void add_update(Value state, Value value);
  void set_outputs(std::vector<Output> outputs);
  void set_updates(std::vector<Update> updates);

  // --- reading ----------------------------------------------------------------------------------

  const std::vector<Value>& inputs() const { return inputs_; }
  Phase input_phase(Value input) const;
  /// For a gradient input: the forward value whose type it has. Null for other inputs.
  Value gradient_of(Value input) const;
  const std::vector<Value>& states() const { return states_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  const std::vector<Update>& updates() const { return updates_; }
  /// Whether `v` is an output or the new value of an update.
  bool is_output(Value v) const;
  size_t value_count() const { return values_.size(); }
  size_t node_count() const;                           ///< live nodes
  size_t node_slots() const { return nodes_.size(); }  ///< one past the highest node id
  Value value(uint32_t id) const { return {const_cast<Graph*>(this), id}; }
  /// First value of that name, or null.
  Value find(std::string_view name) const;
  /// Live nodes in an order in which every producer precedes its consumers and forward precedes
  /// backward; otherwise in the order of insertion (see place_like). Throws ModelError with a
  /// node's name when there is a cycle.
  std::vector<Node> nodes() const;
  /// Readers of each value, indexed by value id. A node that reads a value twice appears twice.
  std::vector<std::vector<Node>> users() const;

  // --- rewriting --------------------------------------------------------------------------------

  /// Makes every reader of `from`, outputs and updates included, read `to`. A gradient input for
  /// `from` becomes one for `to`. The cost depends on the number of readers, not on the size of the
  /// graph.
  void replace_uses(Value from, Value to);
  void erase(Node node);
  /// REQUIRES: no node, output or update reads `input`.
  void remove_input(Value input);
  /// `node` takes the place of `other` in the order of nodes(), as far as dependencies allow.
  void place_like(Node node, Node other);
  /// Erases every node on which no output and no update depends. Returns how many it erased.
  size_t prune();
  void set_type(Value value, Type type);
  void rename(Value value, std::string name);
  void set_tensor(Value value, Tensor tensor);  ///< of a constant or state
  /// Turns a constant into a state whose initial tensor is the constant's, or an input into a state
  /// that is bound later.
  void make_state(Value value);
  /// The known elements of a value of rank at most 1, for shape arithmetic. Type inference sets and
  /// reads them.
  void set_contents(Value value, Shape contents);
  const Shape* contents(Value value) const;

  // --- scope of insertion -----------------------------------------------------------------------

  /// While a Scope lives, nodes added to the graph get its phase, and names that start with
  /// `origin`.
  class Scope {
   public:
    Scope(Graph& graph, Phase phase, std::string origin);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Graph& graph_;
    Phase phase_;
    std::string origin_;
  };

  size_t node_limit = 1'000'000;

 private:
  friend class Value;
  friend class Node;

  struct Reader {
    uint32_t node, input;
  };
  struct ValueData {
    std::string name{};
    Type type{};
    Role role = Role::temp;
    Phase phase = Phase::forward;
    Tensor tensor{};
    int64_t producer = -1;
    int output_index = 0;
    std::optional<Shape> contents{};
    int64_t gradient_of = -1;
    // The readers. The list may also hold former readers: check the node's input before use.
    std::vector<Reader> readers{};
    std::vector<uint32_t> outputs{};    // indices into outputs_
    std::vector<uint32_t> updates{};    // indices into updates_
    std::vector<uint32_t> gradients{};  // ids of gradient inputs
  };
  static constexpr uint32_t kAbsent = UINT32_MAX;
  struct NodeData {
    std::string name;
    std::string op;
    Attrs attrs;
    std::vector<uint32_t> inputs;
    std::vector<uint32_t> outputs;
    Phase phase = Phase::forward;
    uint32_t position = 0;  // order of insertion; place_like() copies that of another node
    bool erased = false;
  };

  Value add_value(ValueData data);
  std::string unique_name(std::string wanted);
  void rebind(const Graph& from);
  void take(Graph& other) noexcept;

  std::deque<ValueData> values_;
  std::deque<NodeData> nodes_;
  std::vector<Value> inputs_;
  std::vector<Value> states_;
  std::vector<Output> outputs_;
  std::vector<Update> updates_;
  std::unordered_map<std::string, uint32_t> names_;  // value name → first id
  std::unordered_map<std::string, int> name_counts_;
  Phase phase_ = Phase::forward;
  std::string origin_;
};

/// One line per node: `%y: float32[b, 4] = Relu(%x)  # name`. Stable: equal graphs give equal text.
std::string to_text(const Graph& graph);

/// Checks the invariants that every pass must keep: handles in range, one producer per value, no
/// cycle, no forward node that reads a backward value, a type for every temp. Throws InternalError
/// with the node's name and `after` (the pass).
void verify(const Graph& graph, std::string_view after);

}  // namespace steep
