// steep check: whether a model can be trained, and if not, what prevents it.
#include "steep/check.h"

#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "runtime/counted.h"
#include "steep/error.h"
#include "train/parameters.h"

namespace steep::cli {
namespace {

struct CheckChoice {
  ModelChoice model;
  std::vector<std::string> shapes;
};

void print_obstacles(const std::vector<Obstacle>& obstacles) {
  fmt::print("cannot be trained: {}\n", counted(obstacles.size(), "obstacle"));
  for (size_t i = 0; i < obstacles.size(); ++i) {
    const Obstacle& o = obstacles[i];
    const std::string op = o.op.empty() ? "" : " (" + o.op + ")";
    fmt::print("\n{:>3}. {}{}\n     {}\n", i + 1, o.node.empty() ? "the model" : o.node, op,
               o.what);
    if (!o.path.empty()) fmt::print("     needed by: {}\n", o.path);
    if (!o.remedy.empty()) fmt::print("     remedy:    {}\n", o.remedy);
  }
}

/// The obstacle for shapes that need too much memory.
Obstacle obstacle_of(const OutOfMemoryError& error) {
  const ErrorParts& p = error.parts();
  return {.op = p.op,
          .node = p.node,
          .remedy = p.remedy,
          .what = fmt::format("{} Received: {}. Expected: {}.", p.what, p.received, p.expected)};
}

int check(const CheckChoice& choice) {
  const TrainingOptions options = training_options(choice.model);
  const CheckReport report = check_model(std::filesystem::path(choice.model.path), options);
  if (!report.obstacles.empty()) {
    print_obstacles(report.obstacles);
    return kObstacles;
  }
  if (!choice.shapes.empty()) {
    TrainingSession session(choice.model.path, options);
    const auto inputs = shells(session.input_info(), parse_shapes(choice.shapes));
    StepPlan plan;
    try {
      plan = session.plan(inputs);
    } catch (const OutOfMemoryError& error) {
      print_obstacles({obstacle_of(error)});
      return kObstacles;
    }
    fmt::print("one step: {}, {:.1f} MiB of intermediate values\n", counted(plan.kernels, "kernel"),
               static_cast<double>(plan.arena_bytes) / (1 << 20));
  }
  int64_t count = 0;
  for (const TensorInfo& p : report.parameters) count += element_count(p.dims);
  fmt::print("can be trained: {} in {}\n", counted(count, "parameter"),
             counted(report.parameters.size(), "tensor"));
  for (const TensorInfo& p : report.parameters) fmt::print("  {}  {}\n", p.name, p.text());
  for (const std::string& line : describe(report.left_out)) fmt::print("{}\n", line);
  for (const std::string& text : report.warnings) fmt::print("warning: {}\n", text);
  for (const Obstacle& o : report.unread) {
    fmt::print("not read by the loss, kept in the file and not trained: {} ({}). {}\n", o.node,
               o.op, o.what);
  }
  return kDone;
}

}  // namespace

Command add_check(CLI::App& parent) {
  auto choice = std::make_shared<CheckChoice>();
  CLI::App& app = *parent.add_subcommand("check", "List every obstacle to training a model");
  add_model_options(app, choice->model);
  add_provider_option(app, choice->model.providers);
  add_pass_option(app, choice->model.options.disabled_passes);
  app.add_option("--shape", choice->shapes, "input=8,128; also compiles the step (needs a loss)");
  app.footer(
      "Examples:\n"
      "  steep check model.onnx\n"
      "  steep check model.onnx --loss mse --shape x=32,10");
  return [choice, &app] {
    check_usage(app, choice->model);
    load_ops(choice->model.ops, choice->model.options.limits);
    return check(*choice);
  };
}

}  // namespace steep::cli
