// steep plan: the values that a training step keeps in memory, those that it could compute again,
// and those that it does compute again.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "cli/chart.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/option_flags.h"
#include "cli/progress.h"
#include "runtime/budget.h"
#include "runtime/disk.h"

namespace steep::cli {
namespace {

struct PlanChoice {
  ModelChoice model;
  std::vector<std::string> shapes;
  std::string plot;
  bool json = false;
};

Fields fields_of(const MemoryPlan& plan) { return {{"bytes", plan.bytes}, {"ms", plan.ms}}; }

/// Prints a line for each node, one for each plan that was found, and the result.
void print_json(const MemoryReport& report, const StepPlan& step) {
  for (const MemoryChoice& c : report.choices) {
    fmt::print("{}\n", to_line({{"report", "node"},
                                {"node", c.node},
                                {"op", c.op},
                                {"bytes", c.bytes},
                                {"ms", c.ms},
                                {"again", c.again}}));
  }
  for (const MemoryPlan& plan : report.plans) {
    fmt::print("{}\n", to_line({{"report", "plan"}, {"bytes", plan.bytes}, {"ms", plan.ms}}));
  }
  fmt::print("{}\n", to_line({{"report", "planned"},
                              {"limit", report.limit},
                              {"planned", fields_of(report.planned)},
                              {"plain", fields_of(report.plain)},
                              {"least", fields_of(report.plans.back())},
                              {"arena", step.arena_bytes}}));
}

/// Draws time against memory for the plans that were found, with a line at the plan for the limit.
void draw(const MemoryReport& report, const PlanChoice& choice) {
  constexpr double kMiB = 1 << 20;
  const auto x = [](const MemoryPlan& p) { return static_cast<double>(p.bytes) / kMiB; };
  Curve curve{.name = "plans", .points = {}};
  for (auto p = report.plans.rbegin(); p != report.plans.rend(); ++p)
    curve.points.emplace_back(x(*p), p->ms);
  Chart chart{
      .title = "time of a step over its memory", .x = "MiB at the peak", .y = "modelled ms"};
  chart.curves = {std::move(curve)};
  if (report.planned.bytes < report.plain.bytes) {
    chart.mark = x(report.planned);
    chart.mark_name = "planned";
  }
  const std::string svg = to_svg(chart);
  write_file(choice.plot, [&](FileWriter& file) { file.write(svg); });
  if (!choice.json) fmt::print("wrote {}\n", destination_text(choice.plot));
}

int run_plan(const PlanChoice& choice) {
  if (!choice.plot.empty()) check_destination(choice.plot);
  const auto shapes = parse_shapes(choice.shapes);
  TrainingSession session(choice.model.path, training_options(choice.model));
  const std::vector<Tensor> inputs = shells(session.input_info(), shapes);
  const StepPlan step = session.plan(inputs);
  const MemoryReport report = session.memory_report(inputs);
  if (choice.json) {
    print_json(report, step);
  } else {
    fmt::print("{}\nstep planned: {}\n", report.text(), step.text());
  }
  if (!choice.plot.empty()) draw(report, choice);
  return kDone;
}

}  // namespace

Command add_plan(CLI::App& parent) {
  auto choice = std::make_shared<PlanChoice>();
  CLI::App& app = *parent.add_subcommand(
      "plan", "Print what a training step keeps in memory or computes again");
  add_model_options(app, choice->model);
  add_provider_option(app, choice->model.providers);
  add_optimizer_option(app, choice->model, "The optimizer of the training step");
  TrainingOptions& options = choice->model.options;
  visit_step_options([&](const OptionRow& row, auto member) {
    if (row.key == "memory_limit" || row.key == "precision") add_flag_of(app, row, options.*member);
  });
  add_pass_option(app, options.disabled_passes);
  app.add_option("--shape,--shapes", choice->shapes,
                 "input=8,128: an input's shape; all that the model leaves open");
  add_picture_option(app, "--plot", choice->plot,
                     "Draw time over memory of the plans that there are, a name in .svg");
  app.add_flag("--json", choice->json, "Print each node, plan and result as a line of JSON");
  app.footer(
      "Nothing runs. Times are modelled from operations and bytes: they compare, and are no "
      "clock.\n"
      "Bytes are those that --memory-limit bounds. If no plan fits the limit, the error has the\n"
      "least that would do.\n"
      "Examples:\n"
      "  steep plan model.onnx --loss mse --shape x=64,784\n"
      "  steep plan model.onnx --loss mse --shape x=64,784 --memory-limit 512M\n"
      "  steep plan model.onnx --loss mse --shape x=64,784 --plot memory.svg");
  return [choice, &app] {
    check_usage(app, choice->model);
    load_ops(choice->model.ops, choice->model.options.limits);
    check_optimizer_usage(app, choice->model.options.optimizer);
    const Budget budget(choice->model.options.limits);
    return run_plan(*choice);
  };
}

}  // namespace steep::cli
