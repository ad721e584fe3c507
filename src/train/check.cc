// check_model(): runs the compiler's stages up to the choice of kernels, and collects errors
// instead of throwing them.
#include "steep/check.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <new>
#include <set>

#include "autodiff/gradient.h"
#include "device/device.h"
#include "model/import/import.h"
#include "model/read/model_file.h"
#include "ops/defs/with_gradient.h"
#include "ops/op_def.h"
#include "passes/pipeline.h"
#include "runtime/budget.h"
#include "runtime/memory.h"
#include "steep/error.h"
#include "train/adapters.h"
#include "train/check_options.h"
#include "train/exporter_ties.h"
#include "train/loss.h"
#include "train/parameters.h"
#include "train/quantised_weights.h"

namespace steep {
namespace {

Obstacle from_error(const Error& error) {
  const ErrorParts& parts = error.parts();
  Obstacle o{.op = parts.op, .node = parts.node, .remedy = parts.remedy, .what = parts.what};
  if (!parts.received.empty()) o.what += " Received: " + parts.received + ".";
  if (!parts.expected.empty()) o.what += " Expected: " + parts.expected + ".";
  return o;
}

/// The values to differentiate: the loss; if the options name no loss and no output, every float
/// output.
std::vector<Value> starts(Graph& graph, const TrainingOptions& options) {
  if (!options.loss.empty() || !options.output.empty()) return {attach_loss(graph, options).loss};
  std::vector<Value> values;
  for (const Output& o : graph.outputs()) {
    if (is_float(o.value.dtype())) values.push_back(o.value);
  }
  return values;
}

/// Checks the name of the operator only: a kernel may still decline types and attributes.
bool can_run(Node n, const Devices& devices) {
  if (devices.know(n.op())) return true;
  const OpDef* def = find_op(n.op());
  return def != nullptr && (def->view || def->dynamic || def->decompose != nullptr);
}

void find_missing_kernels(const Graph& graph, std::span<const Value> outputs,
                          const Devices& devices, std::vector<Obstacle>& obstacles) {
  std::set<std::string> names;
  for (const Obstacle& o : obstacles) names.insert(o.node);
  for (Node n : graph.nodes()) {
    for (const auto& [name, attr] : n.attrs()) {
      const Body* body = std::get_if<Body>(&attr);
      if (body != nullptr && *body) find_missing_kernels(**body, {}, devices, obstacles);
    }
    if (can_run(n, devices) || !names.insert(n.name()).second) continue;
    obstacles.push_back(
        {.op = n.op(),
         .node = n.name(),
         .path = path_to_output(graph, n, outputs),
         .remedy = "Replace the operator by others, name the plug-in that has it, or "
                   "add a kernel (docs/add_an_op.md).",
         .what = devices.only_host()
                     ? "The CPU has no kernel for the operator."
                     : "No provider that was named has a kernel for the operator."});
  }
}

TensorInfo info_of(Value v) {
  return {.name = v.name(), .dtype = v.dtype(), .dims = v.type().dims()};
}

ImportOptions import_options(const TrainingOptions& options) {
  return {.limits = options.limits, .leave_out = true, .named = named_in(options)};
}

/// With adapters, which `options` then name as trainable.
ImportedModel import_adapted(std::span<const std::byte> model, TrainingOptions& options,
                             const std::filesystem::path& folder) {
  const AdaptedModel adapted = with_adapters(model, options);
  ImportOptions how = import_options(options);
  how.states = adapted.packed;
  for (const Adapter& adapter : adapted.adapters)
    options.trainable.insert(options.trainable.end(), {adapter.a(), adapter.b()});
  return import_model(std::as_bytes(std::span(adapted.bytes)), how, folder);
}

/// Errors of options that do not depend on the model.
void find_wrong_options(const TrainingOptions& options, std::vector<Obstacle>& obstacles) {
  try {
    check_options(options);
    check_passes({options.disabled_passes.begin(), options.disabled_passes.end()});
  } catch (const ModelError& error) {
    obstacles.push_back(from_error(error));
  }
}

/// `import`: imports the model as `options` ask, to which it adds what it makes trainable.
CheckReport report(const std::function<ImportedModel(TrainingOptions&)>& import,
                   TrainingOptions options) {
  const Budget budget(options.limits);
  const Devices devices = Devices::of(options.providers);
  CheckReport report;
  try {
    find_wrong_options(options, report.obstacles);
    check_adapter_options(options);
    ImportedModel model = import(options);
    for (const auto& [name, error] : model.left_out)
      report.unread.push_back(from_error(ModelError(error)));
    model.require(options.output.empty() ? "loss" : options.output);
    Graph& graph = model.graph;
    offer_output(graph, options);
    train_quantised(graph, model.initializers, model.constants, options);
    const std::vector<Value> outputs = starts(graph, options);
    if (!options.loss.empty()) {
      if (std::string doubt = doubts(graph, options); !doubt.empty()) {
        report.warnings.push_back(std::move(doubt));
      }
    }
    const ChosenParameters choice = choose_parameters(
        graph, outputs, model.initializers, model.constants, options, left_inside(model.inside));
    const std::vector<Value>& parameters = choice.parameters;
    for (Value v : parameters) report.parameters.push_back(info_of(v));
    report.left_out = choice.left_out;
    add_doubtful_ties(graph, parameters, report.warnings);
    std::vector<Obstacle> found = find_obstacles(graph, outputs, parameters);
    const bool differentiable = found.empty();
    std::move(found.begin(), found.end(), std::back_inserter(report.obstacles));
    if (differentiable) {
      std::vector<Value> seeds;
      for (Value y : outputs) seeds.push_back(graph.add_gradient_input("gradient", y));
      for (Value dw : add_gradients(graph, outputs, seeds, parameters)) {
        if (dw) graph.add_output("gradient", dw, Phase::backward);
      }
    }
    forget_gradients(graph);
    graph.prune();
    find_missing_kernels(graph, outputs, devices, report.obstacles);
  } catch (const IoError&) {
    throw;
  } catch (const InterruptedError&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const OutOfMemoryError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw_out_of_memory();
  } catch (const Error& error) {
    report.obstacles.push_back(from_error(error));
  }
  return report;
}

}  // namespace

CheckReport check_model(const std::filesystem::path& model, const TrainingOptions& options) {
  return report(
      [&](TrainingOptions& chosen) {
        if (options.lora_rank == 0) return import_model(model, import_options(options));
        const std::string bytes = read_file(model, options.limits.max_bytes);
        return import_adapted(std::as_bytes(std::span(bytes)), chosen,
                              model.has_parent_path() ? model.parent_path() : ".");
      },
      options);
}

CheckReport check_model(std::span<const std::byte> model, const TrainingOptions& options,
                        const std::filesystem::path& folder) {
  return report(
      [&](TrainingOptions& chosen) {
        if (options.lora_rank == 0) return import_model(model, import_options(options), folder);
        return import_adapted(model, chosen, folder);
      },
      options);
}

}  // namespace steep
