// Curves as a picture: SVG, which browsers show, and which needs no library.
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
  bool log_x = false, log_y = false;  ///< points that are not positive are left out
  std::vector<Curve> curves{};
  std::optional<double> mark{};  ///< a vertical line at this x
};

/// The picture. Of a curve of more points than it has columns, means of neighbours are drawn. Texts
/// may hold any bytes. Throws DataError where no point is left.
std::string to_svg(const Chart& chart);

/// An option `name` that takes a name in .svg.
CLI::Option* add_picture_option(CLI::App& app, const char* name, std::string& path,
                                const char* about);

}  // namespace steep::cli
