// Nodes that run between the planned parts of a graph.
#pragma once

#include <list>

#include "flow/run_context.h"

namespace steep {

struct DynamicCall;

/// What a plan depends on: dtype and extents of a tensor; nothing of anything else.
Type type_of(const Datum& datum);
/// The same dtype, and extents that are known to be equal.
bool same_type(const Type& a, const Type& b);

/// Plans of one node as a graph of its own, its smaller integer operands as constants, so that its
/// shapes are known; kept for operands of the same types and constants.
class NodePlans {
 public:
  std::vector<Datum> run(const DynamicCall& call);

 private:
  struct Ready {
    std::vector<Type> types;        // by operand
    std::vector<Tensor> constants;  // by operand; undefined: fed
    std::unique_ptr<Executable> executable;
  };
  Ready* find(const DynamicCall& call);
  bool make(const DynamicCall& call, bool all_constant);

  std::list<Ready> ready_;  // most recently used first
};

/// One node with what it reads. Absent operands are empty.
struct DynamicCall {
  Node node;
  std::span<const Datum> inputs;
  const RunContext& context;
  std::vector<bool> wanted;  ///< by output: something reads it
  NodePlans& plans;          ///< this node's

  bool has(size_t i) const { return i < inputs.size() && !inputs[i].empty(); }
  bool wants(size_t output) const { return output < wanted.size() && wanted[output]; }
  /// Throw DataError naming the node when the operand is of another kind.
  const Tensor& tensor(size_t i) const;
  const Datum::Items& items(size_t i) const;
  /// The single element of an integer operand.
  int64_t integer(size_t i) const;

  [[noreturn]] void fail(std::string what, std::string expected, std::string received,
                         std::string remedy = "") const;
};

/// The node's outputs, one Datum for each. Throws what kernels throw.
std::vector<Datum> run_dynamic(const DynamicCall& call);

using DynamicRule = std::vector<Datum> (*)(const DynamicCall&);
/// Rules of operators that are no provider's business; nullptr when `op` has none. flow/rules.cc
DynamicRule find_dynamic_rule(std::string_view op);

}  // namespace steep
