#include "train/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "data/convert.h"
#include "runtime/float32.h"
#include "steep/error.h"
#include "train/name_suggestions.h"

namespace steep {
namespace {

/// SplitMix64 (Steele et al. 2014): the generator's next number.
uint64_t next_number(uint64_t* state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

uint64_t state_for(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash ^ next_number(&seed);
}

Tensor random_matrix(const Adapter& adapter, uint64_t seed) {
  Tensor matrix = Tensor::empty(DType::f64, {adapter.rows, adapter.rank});
  const double bound = 1 / std::sqrt(static_cast<double>(adapter.rows));
  uint64_t state = state_for(seed, adapter.a());
  for (int64_t i = 0; i < matrix.size(); ++i) {
    const double unit = static_cast<double>(next_number(&state) >> 11) * 0x1p-53;
    matrix.data<double>()[i] = (2 * unit - 1) * bound;
  }
  return convert(matrix, adapter.dtype, adapter.a());
}

}  // namespace

void check_adapter_options(const TrainingOptions& o) {
  if (o.lora_rank < 0 || (o.lora_alpha && !(*o.lora_alpha > 0 && fits_float32(*o.lora_alpha)))) {
    throw ModelError(
        ErrorParts{.what = "The settings of adapters are out of range.",
                   .expected = "a lora_rank of at least 1, and a positive lora_alpha",
                   .received = fmt::format("lora_rank {}, lora_alpha {}", o.lora_rank,
                                           o.lora_alpha.value_or(static_cast<double>(o.lora_rank))),
                   .remedy = "Begin with lora_rank=8 (--lora 8), and no lora_alpha."});
  }
  if (o.lora_rank == 0 && (o.lora_alpha || !o.lora_targets.empty())) {
    throw ModelError(ErrorParts{.what = "There are settings of adapters, but no rank.",
                                .expected = "a lora_rank of at least 1",
                                .received = "lora_rank 0 with lora_alpha or lora_targets",
                                .remedy = "Set lora_rank (--lora), or leave the others out."});
  }
}

namespace {

std::string list_reasons(std::span<const Adapter> all, std::string_view pattern) {
  constexpr size_t kShown = 5;
  std::string text;
  size_t count = 0;
  for (const Adapter& adapter : all) {
    if (adapter.why_not.empty() || !matches(pattern, adapter.weight)) continue;
    if (++count > kShown) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", adapter.weight, adapter.why_not);
  }
  if (count > kShown) text += fmt::format("; … and {} more", count - kShown);
  return text.empty() ? "no weights" : text;
}

class Chooser {
 public:
  Chooser(std::vector<Adapter> all, const TrainingOptions& options)
      : all_(std::move(all)),
        options_(options),
        wanted_(all_.size(), options.lora_targets.empty()) {
    for (const Adapter& adapter : all_) {
      names_.push_back(adapter.weight);
      if (adapter.why_not.empty()) possible_.push_back(adapter.weight);
    }
  }

  std::vector<Adapter> run() {
    for (const std::string& target : options_.lora_targets) select(target);
    std::vector<Adapter> result;
    for (size_t i = 0; i < all_.size(); ++i) {
      if (!wanted_[i] || !all_[i].why_not.empty() || chosen_otherwise(all_[i].weight)) continue;
      check_rank(all_[i]);
      result.push_back(std::move(all_[i]));
      result.back().rank = options_.lora_rank;
      result.back().factor = options_.lora_alpha.value_or(static_cast<double>(options_.lora_rank)) /
                             static_cast<double>(options_.lora_rank);
    }
    if (!result.empty()) return result;
    throw ModelError(
        ErrorParts{.what = "No weight can have an adapter.",
                   .expected = "a matrix that is only the right operand of MatMul, Gemm or "
                               "MatMulNBits, and not in `trainable` or `frozen`",
                   .received = possible_.empty() ? list_reasons(all_, "*") : list_names(possible_),
                   .remedy = "Train weights themselves: leave lora_rank (--lora) out."});
  }

 private:
  bool is_pattern(const std::string& name) const {
    return name.find('*') != std::string::npos &&
           std::find(names_.begin(), names_.end(), name) == names_.end();
  }

  void select(const std::string& target) {
    const bool pattern = is_pattern(target);
    bool found = false, known = false;
    for (size_t i = 0; i < all_.size(); ++i) {
      const Adapter& adapter = all_[i];
      if (pattern ? !matches(target, adapter.weight) : target != adapter.weight) continue;
      known = true;
      found = found || adapter.why_not.empty();
      wanted_[i] = true;
    }
    if (!found) refuse(target, pattern, known);
    if (pattern || !chosen_otherwise(target)) return;
    throw ModelError(ErrorParts{
        .what = "A target of adapters is trained itself, or frozen.",
        .node = target,
        .expected = "a weight that is not in `trainable` (--train) or `frozen` (--freeze)",
        .received = "a name of both lists",
        .remedy = "Leave it in one. A weight with an adapter stays as it is without `frozen`."});
  }

  [[noreturn]] void refuse(const std::string& target, bool pattern, bool known) const {
    throw ModelError(ErrorParts{
        .what = known     ? "A target cannot have an adapter."
                : pattern ? "There is no such initializer: no name has this pattern."
                          : "There is no such initializer.",
        .node = target,
        .expected = nearest_names(target, possible_),
        .received = known ? list_reasons(all_, target) : target,
        .remedy = "Name matrices that only right operands of MatMul, Gemm and MatMulNBits read. "
                  "Other weights, and those inside of functions, are trained themselves: "
                  "trainable (--train)."});
  }

  /// Whether `trainable` or `frozen` selects the weight.
  bool chosen_otherwise(const std::string& weight) const {
    for (const auto* list : {&options_.trainable, &options_.frozen}) {
      for (const std::string& name : *list) {
        if (name == weight || (is_pattern(name) && matches(name, weight))) return true;
      }
    }
    return false;
  }

  void check_rank(const Adapter& adapter) const {
    const int64_t least = std::min(adapter.rows, adapter.columns);
    if (options_.lora_rank <= least) return;
    throw ModelError(ErrorParts{
        .what = "The rank of adapters is above the least extent of a weight.",
        .node = adapter.weight,
        .expected =
            fmt::format("at most {}: the weight is [{}, {}]", least, adapter.rows, adapter.columns),
        .received = fmt::format("lora_rank {}", options_.lora_rank),
        .remedy = "Lower it; or train this weight itself: trainable (--train); or name other "
                  "weights: lora_targets (--targets)."});
  }

  std::vector<Adapter> all_;
  const TrainingOptions& options_;
  std::vector<bool> wanted_;
  std::vector<std::string> names_, possible_;
};

}  // namespace

std::vector<Adapter> choose_adapters(const DetachedModel& model, const TrainingOptions& options) {
  return Chooser(find_adapters(model), options).run();
}

namespace {

bool is_selected(const std::string& name, std::span<const std::string> patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return pattern == name || matches(pattern, name);
  });
}

}  // namespace

AdaptedModel with_adapters(std::span<const std::byte> model, const TrainingOptions& options) {
  AdaptedModel result;
  DetachedModel file(model, {}, {}, options.limits);  // without a folder
  result.adapters = choose_adapters(file, options);
  add_adapters(file, result.adapters, initial_adapters(result.adapters, options.seed));
  result.bytes = file.whole();
  result.packed = quantised_weights(file);
  result.frozen = result.packed;
  for (const std::string& name : scales_of_weights(file)) {
    if (!is_selected(name, options.trainable)) result.frozen.insert(name);
  }
  for (const Adapter& adapter : result.adapters) result.frozen.insert(adapter.weight);
  return result;
}

std::map<std::string, Tensor> initial_adapters(std::span<const Adapter> adapters, uint64_t seed) {
  std::map<std::string, Tensor> values;
  for (const Adapter& adapter : adapters) {
    values[adapter.a()] = random_matrix(adapter, seed);
    values[adapter.b()] = Tensor::zeros(adapter.dtype, {adapter.rank, adapter.columns});
  }
  return values;
}

}  // namespace steep
