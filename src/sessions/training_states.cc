// The states of a TrainingSession, by name, and the exported model with their values.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

#include "data/block_float.h"
#include "data/convert.h"
#include "model/export/for_inference.h"
#include "model/export/strip_loss.h"
#include "sessions/state_file.h"
#include "sessions/training_impl.h"
#include "steep/error.h"
#include "train/finite.h"
#include "train/name_suggestions.h"
#include "train/optimizer.h"

namespace steep {
namespace {

std::string type_text(const Tensor& tensor) {
  return fmt::format("{}{}", name_of(tensor.dtype()), to_string(tensor.dims()));
}

bool has_scales(DType dtype) { return dtype == DType::i8 || dtype == DType::u8; }

/// Whether it is a moment that another process has read from a checkpoint.
bool is_type_only(const Tensor& tensor) { return tensor.data() == nullptr; }

/// Whether a moment of this dtype is kept in fewer bits.
bool is_narrow(DType dtype) { return dtype == DType::bf16 || has_scales(dtype); }

/// The moment `name`, in float32 and exactly. REQUIRES: its scales are there, if it has some.
Tensor wide(const std::map<std::string, Tensor>& states, const std::string& name) {
  const Tensor& state = states.at(name);
  if (has_scales(state.dtype())) return widened({state, states.at(scale_name(name))});
  return state.dtype() == DType::bf16 ? convert(state, DType::f32, name) : state.clone();
}

/// Whether the moment `name` has codes, and a scale for each of their blocks.
bool is_scaled(const std::map<std::string, Tensor>& states, const std::string& name) {
  const Tensor& codes = states.at(name);
  const auto scales = states.find(scale_name(name));
  return has_scales(codes.dtype()) && scales != states.end() &&
         scales->second.dtype() == DType::f32 &&
         scales->second.dims() == Dims{float_blocks(codes.size())};
}

/// Sets the moment `name`, and its scales, to these values, rounded to `dtype`.
void put(std::map<std::string, Tensor>& states, const std::string& name, const Tensor& values,
         DType dtype) {
  if (!has_scales(dtype)) {
    states[name] = convert(values, dtype, name);
    return;
  }
  BlockFloats blocks = narrowed(values, dtype);
  states[name] = std::move(blocks.codes);
  states[scale_name(name)] = std::move(blocks.scales);
}

/// As put(), where only the type is known.
void set_type(std::map<std::string, Tensor>& states, const std::string& name, const Dims& dims,
              DType dtype) {
  Tensor& state = states[name] = Tensor::wrap(dtype, dims, nullptr, nullptr);
  if (!has_scales(dtype)) return;
  states[scale_name(name)] =
      Tensor::wrap(DType::f32, {float_blocks(state.size())}, nullptr, nullptr);
}

/// Throws CheckpointError unless the moment `name` has valid scales; where it has a type only,
/// unless they have the right type.
void require_scales(const std::map<std::string, Tensor>& states, const std::string& name,
                    const std::filesystem::path& file) {
  const auto refuse = [&](std::string received) {
    throw CheckpointError(ErrorParts{.what = fmt::format("{} is damaged.", file.string()),
                                     .node = scale_name(name),
                                     .expected = "a power of two for each block of 256 elements",
                                     .received = std::move(received)});
  };
  const auto found = states.find(scale_name(name));
  if (found == states.end()) return refuse("no value of this name");
  const Tensor& scales = found->second;
  if (scales.dtype() != DType::f32 || scales.dims() != Dims{float_blocks(states.at(name).size())})
    return refuse(type_text(scales));
  if (is_type_only(states.at(name))) return;
  for (const float scale : std::span(scales.data<float>(), static_cast<size_t>(scales.size()))) {
    if (!is_float8_scale(scale)) return refuse(fmt::format("{}", scale));
  }
}

const char* precision_name(DType dtype) {
  return has_scales(dtype) ? "int8" : dtype == DType::bf16 ? "bfloat16" : "float32";
}

}  // namespace

void TrainingSession::Impl::offload_states() {
  const bool frozen = options.offload == "frozen";
  if (options.offload != "moments" && options.offload != "all" && !frozen) {
    throw ModelError(ErrorParts{.what = "There are no such states to be offloaded.",
                                .node = "offload",
                                .expected = "moments or all, or frozen",
                                .received = options.offload});
  }
  if (frozen && (options.lora_rank == 0 || !options.offload_folder.empty())) {
    throw ModelError(ErrorParts{
        .what = "Frozen weights stay in the model's own file, beside adapters.",
        .node = "offload",
        .expected = "lora_rank (--lora), and no offload_folder (--offload-folder)",
        .received = options.lora_rank == 0 ? "no lora_rank" : options.offload_folder,
        .remedy = "For states of the optimizer in a file of their own: offload=\"moments\"."});
  }
  if (options.offload == "all" && options.offload_folder.empty()) {
    throw ModelError(ErrorParts{.what = "There is no folder for the states that are offloaded.",
                                .node = "offload",
                                .expected = "all with offload_folder (--offload-folder)",
                                .received = "all, and no offload_folder",
                                .remedy = "Name a folder on a disk, or leave offload out."});
  }
  if (options.offload_folder.empty()) return;
  std::vector<std::string> names = model.moments;
  if (options.offload == "all") {
    for (const auto* more : {&model.parameters, &model.statistics})
      std::copy_if(more->begin(), more->end(), std::back_inserter(names),
                   [&](const std::string& name) { return weight_data.count(name) == 0; });
  }
  std::vector<Tensor*> tensors;
  for (const std::string& name : names) tensors.push_back(&programs.states.at(name));
  move_to_file(tensors, options.offload_folder);
  programs.offloaded.insert(names.begin(), names.end());
  programs.call_lock.hold_process();
}

std::string TrainingSession::Impl::no_count(const std::map<std::string, Tensor>& values) const {
  for (const std::string& name : model.counts) {
    const auto found = values.find(name);
    if (found == values.end()) continue;
    const Tensor& value = found->second;
    if (value.dtype() != DType::f32 || value.size() != 1) continue;  // assign() throws the error
    const float count = value.data<float>()[0];
    if (!(count >= 0) || std::isinf(count) || count != std::trunc(count)) return name;
  }
  return {};
}

std::optional<TrainingSession::Impl::WrongNumber> TrainingSession::Impl::no_moment(
    const std::map<std::string, Tensor>& values, bool may_overflow) const {
  for (const auto& [name, value] : values) {
    if (is_type_only(value)) continue;
    const auto owner = model.moment_owners.find(name);
    if (owner == model.moment_owners.end() || infinite_.count(owner->second) != 0) continue;
    const bool square = model.never_negative.count(name) != 0;
    if (!is_float(value.dtype()) && !is_scaled(values, name)) continue;  // assign() throws
    if (!square && is_float(value.dtype()) && all_finite(value)) continue;
    const Tensor exact =
        is_narrow(value.dtype()) ? wide(values, name) : convert(value, DType::f64, name);
    const auto find = [&](const auto* numbers) -> std::optional<float> {
      const auto wrong = std::find_if(numbers, numbers + exact.size(), [&](auto x) {
        if (square && (x < 0 || (may_overflow && x > 0))) return x < 0;
        return !std::isfinite(x);
      });
      if (wrong == numbers + exact.size()) return {};
      return static_cast<float>(*wrong);
    };
    const auto wrong =
        exact.dtype() == DType::f32 ? find(exact.data<float>()) : find(exact.data<double>());
    if (wrong) return WrongNumber{name, *wrong};
  }
  return {};
}

const char* TrainingSession::Impl::moment_range(const std::string& name) const {
  return model.never_negative.count(name) != 0 ? "finite numbers of at least 0" : "finite numbers";
}

void TrainingSession::Impl::set_averages(const std::map<std::string, Tensor>& weights) {
  if (options.ema_decay == 0) return;
  std::map<std::string, Tensor> averages;
  for (const std::string& name : model.parameters) {
    const auto weight = weights.find(name);
    if (weight == weights.end()) continue;
    const std::string average = moment_name(kAverage, name);
    averages[average] = convert(weight->second, programs.states.at(average).dtype(), name);
  }
  assign(averages, optimizer_states(), "optimizer moment");
}

std::map<std::string, Tensor> TrainingSession::Impl::shared(
    const std::vector<std::string>& names) const {
  std::map<std::string, Tensor> result;
  for (const std::string& name : names) result[name] = programs.states.at(name);
  return result;
}

std::unique_ptr<DetachedModel> TrainingSession::Impl::detached(bool for_inference,
                                                               bool merge) const {
  require_whole();
  std::map<std::string, Tensor> weights = shared(stored());
  for (const std::string& name : model.parameters) {
    if (options.ema_decay == 0) break;
    Tensor& weight = weights.at(name);
    weight = convert(programs.states.at(moment_name(kAverage, name)), weight.dtype(), name);
  }
  for (const QuantisedWeight& quantised_weight : model.quantised) {
    const auto weight = weights.find(quantised_weight.name);
    if (weight != weights.end()) weight->second = quantised(quantised_weight, weight->second);
  }
  // the data of initializers that are not trained
  weights.insert(weight_data.begin(), weight_data.end());
  std::map<std::string, Tensor> factors;
  for (const Adapter& adapter : adapters) {
    factors.insert(weights.extract(adapter.a()));
    factors.insert(weights.extract(adapter.b()));
  }
  auto detached_model = std::make_unique<DetachedModel>(std::as_bytes(std::span(bytes)), weights,
                                                        folder, options.limits, data_files);
  write_adapters(*detached_model, factors, merge);
  if (!for_inference) return detached_model;
  if (!model.loss_output.empty()) {
    detached_model->set_skeleton(strip_loss(std::as_bytes(std::span(detached_model->skeleton())),
                                            model.loss_output, options.label));
  }
  rewrite_for_inference(*detached_model);
  return detached_model;
}

std::string TrainingSession::Impl::changes_since(const Settings& before) const {
  Settings now = recorded_settings(options);
  const auto lr = before.find("lr");
  if (lr != before.end() && lr->second != now["lr"] && base_lr == loaded_lr) {
    now["lr"] += fmt::format(" (not used: the checkpoint's rate, {}, stays)", loaded_lr);
  }
  return changed_settings(before, now);
}

std::vector<std::string> TrainingSession::Impl::stored() const {
  std::vector<std::string> names = model.parameters;
  names.insert(names.end(), model.statistics.begin(), model.statistics.end());
  return names;
}

std::vector<std::string> TrainingSession::Impl::optimizer_states() const {
  std::vector<std::string> names = model.moments;
  names.insert(names.end(), model.counts.begin(), model.counts.end());
  std::erase_if(names, [&](const std::string& name) { return elsewhere.count(name) != 0; });
  return names;
}

std::vector<std::string> TrainingSession::Impl::kept_states() const {
  std::vector<std::string> names = optimizer_states();
  for (const std::string& name : model.scales) {
    if (elsewhere.count(name) == 0) names.push_back(name);
  }
  return names;
}

Tensor TrainingSession::Impl::wide_state(const std::string& name) const {
  return wide(programs.states, name);
}

std::map<std::string, Tensor> TrainingSession::Impl::kept(
    std::map<std::string, Tensor> values) const {
  for (const std::string& name : model.scales) {
    if (values.count(name) == 0) continue;
    throw ModelError(ErrorParts{.what = "Scales of a moment cannot be set.",
                                .node = name,
                                .expected = "the moment itself, in float32",
                                .received = name});
  }
  for (const std::string& name : model.moments) {
    const auto value = values.find(name);
    if (value == values.end()) continue;
    const Tensor& state = programs.states.at(name);
    if (!is_narrow(state.dtype())) continue;
    if (value->second.dtype() != DType::f32 || value->second.dims() != state.dims()) {
      throw ShapeError(ErrorParts{.what = "An optimizer moment has another type.",
                                  .node = name,
                                  .expected = "float32" + to_string(state.dims()),
                                  .received = type_text(value->second)});
    }
    put(values, name, Tensor(value->second), state.dtype());
  }
  return values;
}

std::string TrainingSession::Impl::convert_states(std::map<std::string, Tensor>& values,
                                                  const std::filesystem::path& file) const {
  std::string note;
  for (const std::string& name : model.moments) {
    const auto value = values.find(name);
    if (value == values.end()) continue;
    const DType before = value->second.dtype(), now = state_type(name).dtype();
    if (has_scales(before)) require_scales(values, name, file);
    if (before == now || (!is_narrow(before) && !is_narrow(now))) continue;
    const bool floats =
        (is_narrow(before) || before == DType::f32) && (is_narrow(now) || now == DType::f32);
    if (!floats || (has_scales(before) && has_scales(now))) continue;  // another model's
    if (!is_type_only(value->second)) {
      const Tensor exact = wide(values, name);
      values.erase(scale_name(name));
      put(values, name, exact, now);
    } else {
      const Dims dims = value->second.dims();
      values.erase(scale_name(name));
      set_type(values, name, dims, now);
    }
    note = fmt::format(
        "the checkpoint holds moments in {}, this session keeps them in {} (state_precision): they "
        "were converted{}",
        precision_name(before), precision_name(now),
        now == DType::f32 ? " without loss" : ", rounded to nearest");
  }
  return note;
}

void TrainingSession::Impl::assign(const std::map<std::string, Tensor>& values,
                                   const std::vector<std::string>& names, const char* kind) {
  const std::unordered_set<std::string> there(names.begin(), names.end());
  for (const auto& [name, value] : values) {
    if (there.count(name) == 0) {
      throw ModelError(ErrorParts{.what = fmt::format("There is no such {}.", kind),
                                  .node = name,
                                  .expected = nearest_names(name, names),
                                  .received = name});
    }
    const Tensor& state = programs.states.at(name);
    if (value.dtype() != state.dtype() || value.dims() != state.dims()) {
      throw ShapeError(ErrorParts{.what = fmt::format("A {} has another type.", kind),
                                  .node = name,
                                  .expected = type_text(state),
                                  .received = type_text(value)});
    }
  }
  for (const auto& [name, value] : values) {
    Tensor& state = programs.states.at(name);
    if (state.nbytes() > 0) std::memmove(state.data(), value.data(), state.nbytes());
    if (torn) replaced.insert(name);
  }
  torn = torn && replaced.size() < assignable();
}

}  // namespace steep
