// Draws curves as SVG, which browsers show and which needs no library.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace steep::cli {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>>
      points;  ///< by x; those that are not finite, or past 1e300, are not drawn
};

struct Chart {
  std::string title, x, y;
  bool log_x = false, log_y = false;  ///< points that are not positive are not drawn
  std::vector<Curve> curves{};
  std::optional<double> mark{};  ///< a vertical line at this x
  std::string mark_name{};       ///< written beside it
};

/// Draws the chart. If a curve has more points than there are columns, means of neighbours are
/// drawn. Texts may have any bytes. Throws DataError if there is no point to draw.
std::string to_svg(const Chart& chart);

/// Adds an option `name` whose value is a path that ends in .svg.
CLI::Option* add_picture_option(CLI::App& app, const char* name, std::string& path,
                                const char* about);

}  // namespace steep::cli
