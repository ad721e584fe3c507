#include "cli/class_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "data/convert.h"
#include "data/files.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/float32.h"
#include "steep/data.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

constexpr size_t kMostText = size_t{1} << 24;

std::optional<double> number_in(std::string_view word) {
  double value = 0;
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (error != std::errc{} || stop != end || word.empty()) return {};
  return value;
}

bool is_weight(double value) { return value >= 0 && fits_float32(value); }

/// The numbers in a list; nothing if a part is not a number.
std::optional<std::vector<double>> list_in(const std::string& text) {
  std::vector<double> values;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    const auto value = number_in(part);
    if (!value) return {};
    values.push_back(*value);
  }
  return values;
}

[[noreturn]] void refuse(const std::string& what, const std::string& received) {
  throw DataError(ErrorParts{.what = what + ".",
                             .expected = "a number of at least 0 for each class, in their order",
                             .received = received});
}

std::vector<double> from_array(const std::string& path, const Limits& limits) {
  const std::map<std::string, Tensor> arrays = load_arrays(path, limits);
  const Tensor& array = arrays.begin()->second;
  if (arrays.size() != 1 || array.dims().size() != 1 || !converts(array.dtype(), DType::f64)) {
    refuse(fmt::format("{} has no class weights", path),
           fmt::format("{}{}", name_of(array.dtype()), to_string(array.dims())));
  }
  const Tensor wide = convert(array, DType::f64, path);
  const auto* p = wide.data<double>();
  for (int64_t i = 0; i < wide.size(); ++i) {
    if (!is_weight(p[i])) {
      refuse(fmt::format("{} has a wrong class weight", path),
             fmt::format("{} at element {}", p[i], i));
    }
  }
  return {p, p + wide.size()};
}

std::vector<double> from_text(const FileSource& file) {
  if (file.size() > kMostText) {
    refuse(fmt::format("{} is too large for class weights", file.name()),
           counted(file.size(), "byte"));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text.data(), text.size());
  std::vector<double> values;
  constexpr std::string_view kBetween = ", \t\r\n";
  int64_t row = 1;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '\n') ++row;
    if (kBetween.find(text[at]) != std::string_view::npos) {
      ++at;
      continue;
    }
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = std::string_view(text).substr(at, end - at);
    const auto value = number_in(word);
    if (!value || !is_weight(*value)) {
      constexpr size_t kShown = 40;
      std::string excerpt(word.substr(0, kShown));
      for (char& c : excerpt) c = static_cast<unsigned char>(c) < ' ' ? '?' : c;
      refuse(fmt::format("{} has a wrong class weight in row {}", file.name(), row),
             fmt::format("'{}' as number {}", excerpt, values.size() + 1));
    }
    values.push_back(*value);
    at = end;
  }
  return values;
}

}  // namespace

CLI::Option* add_class_weights_option(CLI::App& app, const OptionRow& row, std::string& text) {
  return app
      .add_option(std::string(row.flag), text,
                  std::string(row.help) + ";\nor a file of these numbers: text or .npy")
      ->check([](const std::string& word) {
        if (const auto values = list_in(word)) {
          for (const double value : *values) {
            if (!is_weight(value)) return "expected numbers of at least 0, received '" + word + "'";
          }
          return std::string();
        }
        std::error_code error;
        return std::filesystem::is_regular_file(word, error)
                   ? std::string()
                   : "expected numbers, as in 1,2,0.5, or a file of them, received '" + word + "'";
      });
}

std::vector<double> class_weights_from(const std::string& text, const Limits& limits) {
  if (text.empty()) return {};
  if (auto values = list_in(text)) return std::move(*values);
  const Budget budget(limits);
  const FileSource file(text);
  const bool array = file.size() >= 6 && [&] {
    char start[6];
    file.read(0, start, sizeof start);
    return std::string_view(start, sizeof start) == "\x93NUMPY";
  }();
  std::vector<double> values = array ? from_array(text, limits) : from_text(file);
  if (values.empty()) refuse(fmt::format("{} has no class weights", text), "nothing");
  return values;
}

}  // namespace steep::cli
