// steep dump: the graph as text; with shapes, also the kernels and the memory plan.
#include <fmt/format.h>

#include <memory>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "ir/seed.h"
#include "model/import/import.h"
#include "program/engine.h"

namespace steep::cli {
namespace {

struct DumpChoice {
  ModelChoice model;
  std::vector<std::string> shapes;
  bool step = false;
};

std::vector<TensorInfo> infos(const Graph& graph) {
  std::vector<TensorInfo> result;
  for (Value input : graph.inputs()) {
    if (is_seed(input)) continue;
    TensorInfo info{
        .name = input.name(), .dtype = input.dtype(), .has_rank = input.type().shape.has_value()};
    for (const Dim& dim : input.type().shape.value_or(Shape{})) {
      info.dims.push_back(dim.value());
      info.symbols.push_back(dim.symbol());
    }
    result.push_back(std::move(info));
  }
  return result;
}

int dump(const DumpChoice& choice) {
  const auto shapes = parse_shapes(choice.shapes);
  const TrainingOptions options = training_options(choice.model);
  if (choice.step || !options.loss.empty()) {
    TrainingSession session(choice.model.path, options);
    fmt::print(
        "{}", shapes.empty() ? session.dump() : session.dump(shells(session.input_info(), shapes)));
    return kDone;
  }
  Program program(
      import_model(std::filesystem::path(choice.model.path), {.limits = options.limits}).graph,
      {.limits = options.limits, .devices = Devices::of(options.providers)});
  if (shapes.empty()) {
    fmt::print("{}", to_text(program.graph()));
    return kDone;
  }
  std::vector<Type> types;
  for (const Tensor& t : shells(infos(program.graph()), shapes)) {
    types.push_back({t.dtype(), to_shape(t.dims())});
  }
  fmt::print("{}", program.dump(types));
  return kDone;
}

}  // namespace

Command add_dump(CLI::App& parent) {
  auto choice = std::make_shared<DumpChoice>();
  CLI::App& app = *parent.add_subcommand("dump", "Print graph, kernels and memory plan");
  add_model_options(app, choice->model);
  add_provider_option(app, choice->model.providers);
  add_optimizer_option(app, choice->model, "Of the training step");
  app.add_option("--shape", choice->shapes, "input=8,128: bind shapes and show the plan");
  app.add_flag("--step", choice->step, "The training step, for a model that has its loss inside");
  app.footer(
      "Examples:\n"
      "  steep dump model.onnx\n"
      "  steep dump model.onnx --shape x=8,128\n"
      "  steep dump model.onnx --loss mse --optimizer sgd --shape x=8,128");
  return [choice, &app] {
    const bool step = choice->step || !choice->model.options.loss.empty();
    only_with(app, step, "--loss or --step",
              {"--output", "--train", "--freeze", "--optimizer", "--attribute"});
    check_usage(app, choice->model);
    load_ops(choice->model.ops, choice->model.options.limits);
    check_optimizer_usage(app, choice->model.options.optimizer);
    return dump(*choice);
  };
}

}  // namespace steep::cli
