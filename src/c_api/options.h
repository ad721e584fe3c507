// The object behind a steep_options, and its keys.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "c_api/handles.h"
#include "steep/data.h"
#include "steep/export.h"
#include "steep/gradient.h"
#include "steep/gradient_session.h"
#include "steep/inference.h"
#include "steep/steep.h"
#include "steep_c.h"

namespace steep::c_api {

/// The settings of a group. Some are only for groups with an optimizer of their own.
struct GroupOptions {
  std::optional<double> lr_multiplier{};
  std::optional<double> weight_decay{};
  OptimizerOptions optimizer{.kind = ""};
  std::set<std::string> keys{};  ///< keys that the caller has set

  /// Throws ArgumentError if the settings contradict each other.
  ParameterGroup group() const;
};

/// What steep_parallel_new() passes to DataParallel.
struct ParallelOptions {
  int zero = 0;
  std::string wire_precision = "float32";
  std::map<std::string, std::string> facts{};
};

class Options : public Object {
 public:
  static constexpr std::string_view kKind = "steep_options";
  using Of = std::variant<TrainingOptions, InferenceOptions, GradientOptions, GroupOptions,
                          ExportOptions, GradientSessionOptions, BatchOptions, ParallelOptions>;
  explicit Options(Of kind) : of(std::move(kind)) {}
  std::string_view kind() const override { return kKind; }

  Of of;
};

/// "steep_options of training"
std::string kind_of(const Options::Of& of);
/// Throws ArgumentError: `of` is of another kind of options than `target`.
[[noreturn]] void throw_wrong_options(const Options::Of& of, const Options::Of& target);

/// The options of kind T behind a handle. Throws ArgumentError for another kind or an invalid
/// handle.
template <typename T>
T options(const steep_options* handle) {
  const auto found = object<Options>(handle);
  if (const T* own = std::get_if<T>(&found->of)) return *own;
  throw_wrong_options(found->of, T{});
}

/// The same; default options for null.
template <typename T>
T options_or_defaults(const steep_options* handle) {
  return handle == nullptr ? T{} : options<T>(handle);
}

}  // namespace steep::c_api
