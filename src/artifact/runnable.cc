#include "artifact/runnable.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <utility>

#include "ir/seed.h"
#include "plan/kernel_graph.h"
#include "runtime/budget.h"
#include "runtime/threads.h"
#include "steep/error.h"

namespace steep {
namespace {

KernelGraph kernels_of_artifact(const Graph& graph, std::unordered_map<uint32_t, Ints> views,
                                const Devices& devices) {
  KernelGraph kernel_graph{.kernels = {}, .views = std::move(views), .declined = {}};
  std::string refusals;
  Node first;
  for (Node n : graph.nodes()) {
    if (kernel_graph.views.count(n.id()) != 0) continue;
    std::string why_not;
    NodeKernel choice =
        at_node(n, [&] { return choose_on(devices, n, kernel_graph.declined, &why_not); });
    if (choice.kernel) {
      kernel_graph.kernels.emplace(n.id(), std::move(choice));
      continue;
    }
    refusals += fmt::format("\n    {} ({}): {}", n.name(), n.op(), why_not);
    if (!first) first = n;
  }
  if (refusals.empty()) return kernel_graph;
  throw ProviderError(
      ErrorParts{.what = fmt::format("The {} provider of this library cannot run:{}",
                                     devices.host().provider(), refusals),
                 .node = first.name(),
                 .op = first.op(),
                 .expected = "a kernel for every node of the artifact",
                 .remedy = "Train the model with the whole library."});
}

}  // namespace

Runnable::Run::Run(Executable& executable)
    : executable_(executable), frame_(executable.acquire()) {}
Runnable::Run::~Run() { executable_.release(std::move(frame_)); }

Runnable::Runnable(const ArtifactProgram& program, std::shared_ptr<MemoryPool> pool)
    : program_(program), pool_(std::move(pool)) {
  const auto& all = program.graph.inputs();
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_seed(all[i]) || program.graph.input_phase(all[i]) == Phase::backward) continue;
    inputs_.push_back(all[i]);
    input_at_.push_back(i);
  }
}

std::vector<Value> Runnable::outputs() const {
  std::vector<Value> values;
  for (const Output& o : program_.graph.outputs()) {
    if (o.phase == Phase::forward) values.push_back(o.value);
  }
  return values;
}

bool Runnable::takes(std::span<const Tensor> arrays) const {
  return std::equal(arrays.begin(), arrays.end(), inputs_.begin(), inputs_.end(),
                    [](const Tensor& t, const Value& v) {
                      return t.dtype() == v.dtype() && t.dims() == v.type().dims();
                    });
}

void Runnable::prepare() {
  if (threads_ > settle_threads(threads_)) executable_.reset();
  if (executable_) return;
  threads_ = omp_get_max_threads();
  const Devices devices = Devices::host_alone();
  Graph graph = program_.graph;
  KernelGraph kernel_graph = kernels_of_artifact(graph, program_.views, devices);
  executable_.emplace(make_plan(std::move(graph), std::move(kernel_graph), devices), pool_);
}

std::vector<Tensor> Runnable::forward(std::span<const Tensor> arrays,
                                      const std::map<std::string, Tensor>& states, uint64_t seed,
                                      uint64_t run, std::unique_ptr<Run>* pending) {
  prepare();
  auto own = std::make_unique<Run>(*executable_);
  Frame& frame = *own->frame_;
  const Graph& graph = program_.graph;
  for (size_t i = 0; i < arrays.size(); ++i)
    executable_->bind_input(frame, input_at_[i], arrays[i]);
  for (size_t i = 0; i < graph.states().size(); ++i) {
    // Not const: the step writes to its states.
    void* const bytes = const_cast<void*>(states.at(graph.states()[i].name()).data());
    executable_->bind_state(frame, i, bytes);
  }
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    if (!is_seed(graph.inputs()[i])) continue;
    frame.seed[0] = static_cast<int64_t>(seed);
    frame.seed[1] = static_cast<int64_t>(run);
    executable_->bind_input(frame, i, Tensor::wrap(DType::i64, {2}, frame.seed, nullptr));
  }
  std::vector<Tensor> outputs = executable_->run(frame, Phase::forward, {});
  *pending = std::move(own);
  return outputs;
}

std::vector<Tensor> Runnable::backward(Run& run, const std::map<std::string, Tensor>& arrays,
                                       bool* wrote) {
  const Graph& graph = program_.graph;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const Value input = graph.inputs()[i];
    if (graph.input_phase(input) == Phase::backward)
      executable_->bind_input(*run.frame_, i, arrays.at(input.name()));
  }
  return executable_->run(*run.frame_, Phase::backward, {.wrote_states = wrote});
}

}  // namespace steep
