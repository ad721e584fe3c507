// steep check: can this model be trained, and if not, what stands in the way?
#include <fmt/format.h>

#include <memory>

#include "autodiff/gradient.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "model/import.h"
#include "steep/error.h"
#include "train/loss.h"
#include "train/parameters.h"

namespace steep::cli {
namespace {

struct CheckChoice {
  ModelChoice model;
  std::vector<std::string> shapes;
};

void print_error(const Error& error) {
  fmt::print("cannot be trained\n\n  {}\n", error.parts().what);
  auto part = [](const char* label, const std::string& text) {
    if (!text.empty()) fmt::print("    {:<10}{}\n", label, text);
  };
  part(error.parts().op.empty() ? "name" : "node", error.parts().node);
  part("op", error.parts().op);
  part("expected", error.parts().expected);
  part("received", error.parts().received);
  part("remedy", error.parts().remedy);
}

void print_obstacles(const std::vector<Obstacle>& obstacles) {
  fmt::print("cannot be trained: {} obstacle{}\n", obstacles.size(),
             obstacles.size() == 1 ? "" : "s");
  for (size_t i = 0; i < obstacles.size(); ++i) {
    const Obstacle& o = obstacles[i];
    fmt::print("\n{:>3}. {} ({})\n     needed by: {}\n     remedy:    {}\n", i + 1, o.node, o.op,
               o.path, o.remedy);
  }
}

/// What gradients start from: the loss, or without one every float output.
std::vector<Value> starts(Graph& graph, const TrainingOptions& options) {
  if (!options.loss.empty() || !options.output.empty()) return {attach_loss(graph, options).loss};
  std::vector<Value> values;
  for (const Output& o : graph.outputs()) {
    if (is_float(o.value.dtype())) values.push_back(o.value);
  }
  return values;
}

int check(const CheckChoice& choice) {
  const TrainingOptions options = training_options(choice.model);
  std::vector<Value> parameters;
  Graph graph;
  try {
    ImportedModel model = import_model(std::filesystem::path(choice.model.path));
    graph = std::move(model.graph);
    const std::vector<Value> outputs = starts(graph, options);
    parameters = choose_parameters(graph, outputs, model.initializers, options);
    const auto obstacles = find_obstacles(graph, outputs, parameters);
    if (!obstacles.empty()) {
      print_obstacles(obstacles);
      return kObstacles;
    }
    if (!choice.shapes.empty()) {
      TrainingSession session(choice.model.path, options);
      const auto inputs = shells(session.input_info(), parse_shapes(choice.shapes));
      const StepPlan plan = session.plan(inputs);
      fmt::print("one step: {} kernels, {:.1f} MiB of intermediate values\n", plan.kernels,
                 static_cast<double>(plan.arena_bytes) / (1 << 20));
    }
  } catch (const IoError&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const Error& error) {
    print_error(error);
    return kObstacles;
  }
  int64_t count = 0;
  for (Value v : parameters) count += element_count(v.type().dims());
  fmt::print("can be trained: {} parameters in {} tensors\n", count, parameters.size());
  for (Value v : parameters) fmt::print("  {}  {}\n", v.name(), to_string(v.type()));
  return kDone;
}

}  // namespace

Command add_check(CLI::App& parent) {
  auto choice = std::make_shared<CheckChoice>();
  CLI::App& app = *parent.add_subcommand("check", "List every obstacle to training a model");
  add_model_options(app, choice->model);
  app.add_option("--shape", choice->shapes, "input=8,128; also compiles the step (needs a loss)");
  app.footer(
      "Examples:\n"
      "  steep check model.onnx\n"
      "  steep check model.onnx --loss mse --shape x=32,10");
  return [choice] { return check(*choice); };
}

}  // namespace steep::cli
