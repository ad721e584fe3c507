// steep dump: the graph as text; with shapes, also kernels and memory plan.
#include <fmt/format.h>

#include <memory>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "ir/seed.h"
#include "model/import/import.h"
#include "program/program.h"
#include "runtime/disk.h"

namespace steep::cli {
namespace {

struct DumpChoice {
  ModelChoice model;
  std::vector<std::string> shapes;
  bool step = false;
  bool passes = false;
  std::string html;
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

Program program_of(const DumpChoice& choice, const TrainingOptions& options) {
  Graph graph =
      import_model(std::filesystem::path(choice.model.path), {.limits = options.limits}).graph;
  return Program(std::move(graph), {.disabled_passes = {options.disabled_passes.begin(),
                                                        options.disabled_passes.end()},
                                    .limits = options.limits,
                                    .devices = Devices::of(options.providers)});
}

/// The graph as it is in the file, or compiled, if shapes, --passes or --html ask for that.
std::string dump(const DumpChoice& choice, bool compiled, DumpFormat format) {
  const auto shapes = parse_shapes(choice.shapes);
  const TrainingOptions options = training_options(choice.model);
  if (choice.step || !options.loss.empty()) {
    TrainingSession session(choice.model.path, options);
    return compiled ? session.dump(shells(session.input_info(), shapes), format) : session.dump();
  }
  Program program = program_of(choice, options);
  if (!compiled) return to_text(program.graph());
  std::vector<Type> types;
  for (const Tensor& t : shells(infos(program.graph()), shapes)) {
    types.push_back({t.dtype(), to_shape(t.dims())});
  }
  return program.dump(types, format);
}

int run_dump(const DumpChoice& choice) {
  if (!choice.html.empty()) {
    check_destination(choice.html);
    const std::string page = dump(choice, true, DumpFormat::html);
    write_file(choice.html, [&](FileWriter& file) { file.write(page); });
    fmt::print("wrote {}\n", choice.html);
    return kDone;
  }
  const bool compiled = choice.passes || !choice.shapes.empty();
  fmt::print("{}", dump(choice, compiled, choice.passes ? DumpFormat::passes : DumpFormat::text));
  return kDone;
}

}  // namespace

Command add_dump(CLI::App& parent) {
  auto choice = std::make_shared<DumpChoice>();
  CLI::App& app = *parent.add_subcommand("dump", "Print graph, kernels and memory plan");
  add_model_options(app, choice->model);
  add_provider_option(app, choice->model.providers);
  add_optimizer_option(app, choice->model, "The optimizer of the training step");
  app.add_option("--shape", choice->shapes, "input=8,128: bind shapes and show the plan");
  app.add_flag("--step", choice->step, "Show the training step of a model that contains its loss");
  add_pass_option(app, choice->model.options.disabled_passes);
  CLI::Option* passes =
      app.add_flag("--passes", choice->passes,
                   "The graph before the first pass, and after each pass that changed it");
  app.add_option("--html", choice->html,
                 "Write one page: the steps as a table, the memory as a picture")
      ->excludes(passes);
  app.footer(
      "Examples:\n"
      "  steep dump model.onnx\n"
      "  steep dump model.onnx --shape x=8,128\n"
      "  steep dump model.onnx --loss mse --optimizer sgd --shape x=8,128\n"
      "  steep dump model.onnx --loss mse --shape x=8,128 --html plan.html");
  return [choice, &app] {
    const bool step = choice->step || !choice->model.options.loss.empty();
    only_with(app, step, "--loss or --step",
              {"--output", "--train", "--freeze", "--optimizer", "--attribute"});
    check_usage(app, choice->model);
    load_ops(choice->model.ops, choice->model.options.limits);
    check_optimizer_usage(app, choice->model.options.optimizer);
    return run_dump(*choice);
  };
}

}  // namespace steep::cli
