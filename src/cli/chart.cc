#include "cli/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "runtime/utf8.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

constexpr double kWidth = 800, kHeight = 480, kLeft = 80, kRight = 24, kTop = 40, kBottom = 56;
constexpr double kGreatest = 1e300;
constexpr size_t kColumns = 800;
constexpr std::array<const char*, 6> kColours = {"#1f77b4", "#d62728", "#2ca02c",
                                                 "#9467bd", "#ff7f0e", "#17becf"};

std::string escaped(std::string text) {
  if (!is_utf8(text)) {
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; },
        '?');
  }
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += static_cast<unsigned char>(c) < ' ' ? '?' : c;
    }
  }
  return result;
}

/// The range of values of an axis, and its position in the picture.
struct Axis {
  double low, high;  ///< of the logarithms, if log
  double from, to;   ///< coordinates in the picture
  bool log;

  /// The bound also keeps differences of shown values finite.
  bool shows(double value) const { return std::fabs(value) <= kGreatest && (!log || value > 0); }
  double place(double value) const {
    const double v = log ? std::log10(value) : value;
    return from + (v - low) / (high - low) * (to - from);
  }
  /// Positions of ticks: 1, 2 or 5 times a power of ten. On a logarithmic axis that covers decades
  /// powers of ten only.
  std::vector<double> ticks() const {
    if (!log) return even_ticks(low, high, 0);
    constexpr double kDecades = 3, kFewest = 3;
    std::vector<double> values;
    if (high - low > kDecades) {
      for (const double power : even_ticks(low, high, 1)) values.push_back(std::pow(10, power));
      return values;
    }
    for (double power = std::floor(low); power <= high; ++power) {
      for (const double times : {1.0, 2.0, 5.0}) {
        const double place = power + std::log10(times);
        if (place >= low - 1e-9 && place <= high + 1e-9) values.push_back(std::pow(10, place));
      }
    }
    if (static_cast<double>(values.size()) >= kFewest) return values;
    return even_ticks(std::pow(10, low), std::pow(10, high), 0);
  }

 private:
  /// Multiples of a step of at least `least` between two numbers.
  static std::vector<double> even_ticks(double low, double high, double least) {
    constexpr double kMost = 8;
    const double span = high - low, rough = span / kMost;
    const double unit = std::pow(10, std::floor(std::log10(rough)));
    double step = unit * 10;
    for (const double times : {5.0, 2.0, 1.0}) {
      if (unit * times >= rough) step = unit * times;
    }
    if (least > 0) step = std::max(least, std::ceil(rough));
    std::vector<double> values;
    for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * span; ++k)
      values.push_back(k * step == 0 ? 0 : k * step);
    return values;
  }
};

using Points = std::vector<std::pair<double, double>>;

/// The points that both axes can show. If there are more than columns, means of neighbours.
Points visible(const Curve& curve, const Axis& x, const Axis& y) {
  Points result;
  for (const auto& point : curve.points) {
    if (x.shows(point.first) && y.shows(point.second)) result.push_back(point);
  }
  const size_t each = (result.size() + kColumns - 1) / kColumns;
  if (each <= 1) return result;
  Points means;
  for (size_t begin = 0; begin < result.size(); begin += each) {
    const size_t end = std::min(begin + each, result.size());
    std::pair<double, double> mean{0, 0};
    for (size_t i = begin; i < end; ++i) {
      mean.first += result[i].first / static_cast<double>(end - begin);
      mean.second += result[i].second / static_cast<double>(end - begin);
    }
    means.push_back(mean);
  }
  return means;
}

/// Sets the range of the axis to that of the values, or to a small range around a single value.
void fit(Axis* axis, const std::vector<double>& values) {
  axis->low = std::numeric_limits<double>::infinity();
  axis->high = -axis->low;
  for (const double value : values) {
    const double v = axis->log ? std::log10(value) : value;
    axis->low = std::min(axis->low, v);
    axis->high = std::max(axis->high, v);
  }
  const double least = 1e-9 * std::max({std::fabs(axis->low), std::fabs(axis->high), 1e-290});
  if (!(axis->high - axis->low > least)) {
    const double around = axis->low == 0 ? 1 : std::fabs(axis->low) / 2;
    axis->low -= around;
    axis->high += around;
  }
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)"
                     "\n",
                     x, y, anchor, escaped(text));
}

std::string line(double x1, double y1, double x2, double y2, const char* colour) {
  return fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}"/>)"
                     "\n",
                     x1, y1, x2, y2, colour);
}

std::string grid(const Axis& x, const Axis& y) {
  std::string svg;
  for (const double tick : x.ticks()) {
    svg += line(x.place(tick), y.from, x.place(tick), y.to, "#dddddd");
    svg += text_at(x.place(tick), y.from + 18, "middle", fmt::format("{:.4g}", tick));
  }
  for (const double tick : y.ticks()) {
    svg += line(x.from, y.place(tick), x.to, y.place(tick), "#dddddd");
    svg += text_at(x.from - 8, y.place(tick) + 4, "end", fmt::format("{:.4g}", tick));
  }
  return svg;
}

}  // namespace

std::string to_svg(const Chart& chart) {
  Axis x{.low = 0, .high = 1, .from = kLeft, .to = kWidth - kRight, .log = chart.log_x};
  Axis y{.low = 0, .high = 1, .from = kHeight - kBottom, .to = kTop, .log = chart.log_y};
  std::vector<Points> lines;
  std::vector<double> all_x, all_y;
  for (const Curve& curve : chart.curves) {
    lines.push_back(visible(curve, x, y));
    for (const auto& [a, b] : lines.back()) {
      all_x.push_back(a);
      all_y.push_back(b);
    }
  }
  if (all_x.empty()) {
    throw DataError(ErrorParts{
        .what = fmt::format("Column '{}' has nothing to draw.", chart.y),
        .expected = chart.log_x || chart.log_y ? "finite numbers above 0" : "finite numbers"});
  }
  fit(&x, all_x);
  fit(&y, all_y);
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}")"
      R"( font-family="sans-serif" font-size="12">)"
      "\n"
      R"(<rect width="{0}" height="{1}" fill="white"/>)"
      "\n",
      kWidth, kHeight);
  svg += grid(x, y);
  svg += text_at((x.from + x.to) / 2, kTop - 16, "middle", chart.title);
  svg += text_at((x.from + x.to) / 2, kHeight - 12, "middle", chart.x);
  svg += text_at(kLeft, kTop - 16, "end", chart.y);
  if (chart.mark && x.shows(*chart.mark)) {
    const double at = x.place(*chart.mark);
    svg += line(at, y.from, at, y.to, "#888888");
    const bool left = at > (x.from + x.to) / 2;
    svg += text_at(left ? at - 4 : at + 4, y.from - 8, left ? "end" : "start", chart.mark_name);
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    std::string places;
    for (const auto& [a, b] : lines[i]) {
      places += fmt::format("{:.1f},{:.1f} ", x.place(a), y.place(b));
    }
    if (lines[i].size() == 1) {
      svg += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}"/>)"
                         "\n",
                         x.place(lines[i][0].first), y.place(lines[i][0].second), colour);
    }
    svg += fmt::format(R"(<polyline fill="none" stroke="{}" stroke-width="1.5" points="{}"/>)"
                       "\n",
                       colour, places);
    if (lines.size() < 2) continue;
    const double row = kTop + 16 * static_cast<double>(i + 1);
    svg += line(x.to - 170, row - 4, x.to - 150, row - 4, colour);
    svg += text_at(x.to - 144, row, "start", chart.curves[i].name);
  }
  return svg + "</svg>\n";
}

CLI::Option* add_picture_option(CLI::App& app, const char* name, std::string& path,
                                const char* about) {
  return app.add_option(name, path, about)->check([](const std::string& word) {
    return word.ends_with(".svg") ? std::string()
                                  : "expected a name that ends in .svg, received '" + word + "'";
  });
}

}  // namespace steep::cli
