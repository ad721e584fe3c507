#include "program/compile.h"

#include <new>
#include <utility>

#include "ir/compact.h"
#include "passes/specialise.h"
#include "plan/memory_planner.h"
#include "steep/error.h"

namespace steep {

std::optional<Plan> compile(const Graph& graph, std::span<const Type> types, const Devices& devices,
                            const PassOptions& options, const MemoryLimit& limit) {
  try {
    TimedStage specialising(options.profiler, options.stages, "specialise");
    Specialised concrete = specialise_known(graph, types, devices);
    specialising.done(concrete.graph.nodes().size());
    if (!concrete.deferred.empty()) return std::nullopt;
    run_passes(concrete.graph, options);
    concrete.graph = compacted(concrete.graph);  // the plan keeps it, and searching copies it
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
