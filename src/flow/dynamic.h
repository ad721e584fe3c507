// Nodes that run one by one, between the planned parts of a graph.
#pragma once

#include <list>

#include "flow/run_context.h"

namespace steep {

struct DynamicCall;

/// The part of a value that a plan depends on: dtype and extents of a tensor; nothing for other
/// kinds.
Type type_of(const Datum& datum);
/// Whether dtypes are the same and extents are known to be equal.
bool same_type(const Type& a, const Type& b);

/// Plans for a single node, as a graph of its own. Small integer operands become constants in it,
/// so that its shapes are known. Plans are kept for operands of the same types and constants.
class NodePlans {
 public:
  std::vector<Datum> run(const DynamicCall& call);

 private:
  struct Ready {
    std::vector<Type> types;        // by operand
    std::vector<Tensor> constants;  // by operand; undefined: an input of the plan
    std::unique_ptr<Executable> executable;
  };
  Ready* find(const DynamicCall& call);
  bool make(const DynamicCall& call, bool all_constant);

  std::list<Ready> ready_;  // most recently used first
};

/// A node with its operands. Absent operands are empty.
struct DynamicCall {
  Node node;
  std::span<const Datum> inputs;
  const RunContext& context;
  std::vector<bool> wanted;  ///< by output: another node reads it
  NodePlans& plans;          ///< of this node

  bool has(size_t i) const { return i < inputs.size() && !inputs[i].empty(); }
  bool wants(size_t output) const { return output < wanted.size() && wanted[output]; }
  /// Throw DataError, which names the node, if the operand is of another kind.
  const Tensor& tensor(size_t i) const;
  const Datum::Items& items(size_t i) const;
  /// The single element of an integer operand.
  int64_t integer(size_t i) const;

  [[noreturn]] void fail(std::string what, std::string expected, std::string received,
                         std::string remedy = "") const;
};

/// Runs the node. Returns one Datum for each output. Throws the errors of kernels.
std::vector<Datum> run_dynamic(const DynamicCall& call);

using DynamicRule = std::vector<Datum> (*)(const DynamicCall&);
/// The function that runs an operator that has no kernels; nullptr if `op` is not one
/// (flow/rules.cc).
DynamicRule find_dynamic_rule(std::string_view op);

}  // namespace steep
