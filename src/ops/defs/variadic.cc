#include "ops/defs/variadic.h"

#include "ops/build.h"

namespace steep {

std::vector<Value> few_at_a_time(Node n) {
  constexpr size_t kFew = 16;
  if (static_cast<size_t>(n.input_count()) <= kFew) return {};
  std::vector<Value> operands;
  for (int i = 0; i < n.input_count(); ++i) {
    operands.push_back(n.input(i));
    const bool last = i + 1 == n.input_count();
    if (operands.size() == kFew || last) operands = {steep::apply(n.op(), operands)};
  }
  return operands;
}

}  // namespace steep
