#include "program/compile.h"

#include <new>
#include <utility>

#include "passes/specialise.h"
#include "plan/memory_planner.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Frees what folding left on its way: the plan keeps its graph, and nothing reads these tensors.
void drop_unread_constants(Graph& graph) {
  const std::vector<std::vector<Node>> users = graph.users();
  for (uint32_t id = 0; id < users.size(); ++id) {
    const Value v = graph.value(id);
    if (v.role() == Role::constant && users[id].empty() && !graph.is_output(v))
      graph.set_tensor(v, Tensor::empty(v.dtype(), {0}));
  }
}

}  // namespace

std::optional<Plan> compile(const Graph& graph, std::span<const Type> types, const Devices& devices,
                            const PassOptions& options, const MemoryLimit& limit) {
  try {
    TimedStage specialising(options.profiler, options.stages, "specialise");
    Specialised concrete = specialise_known(graph, types, devices);
    specialising.done(concrete.graph.nodes().size());
    if (!concrete.deferred.empty()) return std::nullopt;
    run_passes(concrete.graph, options);
    drop_unread_constants(concrete.graph);
    TimedStage planning(options.profiler, options.stages, "plan");
    Plan plan =
        plan_within(std::move(concrete.graph), devices, std::move(concrete.decomposed), limit);
    planning.done(plan.graph->nodes().size());
    return plan;
  } catch (const std::bad_alloc&) {
    throw OutOfMemoryError({.what = "There is not enough memory to compile the model.",
                            .remedy = "Use smaller shapes, or give the process more memory."});
  }
}

}  // namespace steep
