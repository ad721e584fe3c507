// steep plot: columns of the files that `steep train --metrics` writes, as a picture.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <span>

#include "cli/chart.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "data/convert.h"
#include "data/csv.h"
#include "data/files.h"
#include "runtime/budget.h"
#include "runtime/disk.h"
#include "steep/error.h"
#include "train/name_suggestions.h"

namespace steep::cli {
namespace {

struct PlotChoice {
  std::vector<std::string> runs;
  std::string out = "losses.svg";
  std::string column = "loss";
  double smooth = 0;
  bool log = false;
  Limits limits;
};

/// The file itself; for a folder, its metrics.csv.
std::filesystem::path file_of(const std::string& run) {
  std::error_code error;
  const std::filesystem::path path = run;
  return std::filesystem::is_directory(path, error) ? path / "metrics.csv" : path;
}

std::span<const double> numbers(std::vector<CsvColumn>& columns, const std::string& name,
                                const std::string& file) {
  std::vector<std::string> names;
  for (CsvColumn& column : columns) {
    names.push_back(column.name);
    if (column.name != name) continue;
    if (column.refused) throw DataError(*column.refused);
    column.values = convert(column.values, DType::f64, name);
    return {column.values.data<double>(), static_cast<size_t>(column.values.size())};
  }
  const std::string near = closest_name(name, names);
  throw DataError(ErrorParts{.what = fmt::format("{} has no column '{}'.", file, name),
                             .expected = fmt::format("a column '{}'", name),
                             .received = list_names(names),
                             .remedy = near.empty() ? "" : fmt::format("Did you mean {}?", near)});
}

Curve curve_of(const std::string& run, const PlotChoice& choice) {
  const std::filesystem::path path = file_of(run);
  std::vector<CsvColumn> columns = read_csv(FileSource(path), choice.limits);
  const std::span<const double> step = numbers(columns, "step", path.string());
  const std::span<const double> value = numbers(columns, choice.column, path.string());
  Curve curve{.name = run, .points = {}};
  double mean = 0, weight = 0;  // of the points so far, with decaying weights
  for (size_t i = 0; i < value.size(); ++i) {
    if (!std::isfinite(value[i])) continue;
    mean = choice.smooth * mean + (1 - choice.smooth) * value[i];
    weight = choice.smooth * weight + (1 - choice.smooth);
    curve.points.emplace_back(step[i], mean / weight);
  }
  return curve;
}

int plot(const PlotChoice& choice) {
  const Budget budget(choice.limits);
  check_destination(choice.out);
  Chart chart{.title = choice.column, .x = "step", .y = choice.column, .log_y = choice.log};
  for (const std::string& run : choice.runs) chart.curves.push_back(curve_of(run, choice));
  const std::string svg = to_svg(chart);
  write_file(choice.out, [&](FileWriter& file) { file.write(svg); });
  fmt::print("wrote {}\n", destination_text(choice.out));
  return kDone;
}

}  // namespace

Command add_plot(CLI::App& parent) {
  auto choice = std::make_shared<PlotChoice>();
  CLI::App& app = *parent.add_subcommand("plot", "Draw the losses of runs");
  app.add_option("runs", choice->runs, "Files of --metrics, or folders with a metrics.csv")
      ->required();
  add_picture_option(app, "--out", choice->out, "The picture, a name in .svg")
      ->capture_default_str();
  app.add_option("--column", choice->column, "What to draw over the steps: loss, lr or grad_norm")
      ->capture_default_str();
  app.add_option("--smooth", choice->smooth,
                 "Part of each mean of what came before that the next one keeps, as in 0.9")
      ->transform(real(0, 1 - 1e-6));
  app.add_flag("--log", choice->log, "A logarithmic axis");
  app.add_option("--max-bytes", choice->limits.max_bytes, "Greatest size of a file, as in 8G")
      ->transform(CLI::AsSizeValue(false));
  app.footer(
      "Rows that hold no finite number are left out.\n"
      "Examples:\n"
      "  steep plot metrics.csv\n"
      "  steep plot runs/a runs/b/metrics.csv --out both.svg --smooth 0.9 --log");
  return [choice] { return plot(*choice); };
}

}  // namespace steep::cli
