#include "train/delivery.h"

#include "ops/build.h"
#include "train/optimizer.h"

namespace steep {

void deliver(Value value, const Delivery& to, const std::string& parameter, size_t index) {
  if (to.receiver == 0) return;
  // Only nodes whose results are kept run.
  Graph& graph = value.graph();
  const Value delivered =
      add_optimizer_state(graph, "delivered/" + parameter, {DType::f32, Shape{}});
  graph.add_update(delivered,
                   apply("steep.Deliver", {value},
                         {{"receiver", to.receiver}, {"index", static_cast<int64_t>(index)}}));
}

}  // namespace steep
