// The states of a TrainingSession, by name, and the exported model with their values.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

#include "data/convert.h"
#include "model/export/for_inference.h"
#include "model/export/strip_loss.h"
#include "sessions/training_impl.h"
#include "steep/error.h"
#include "train/name_suggestions.h"
#include "train/optimizer.h"

namespace steep {
namespace {

std::string type_text(const Tensor& tensor) {
  return fmt::format("{}{}", name_of(tensor.dtype()), to_string(tensor.dims()));
}

}  // namespace

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
  // the data of initializers that are not trained
  weights.insert(weight_data.begin(), weight_data.end());
  std::map<std::string, Tensor> factors;
  for (const Adapter& adapter : adapters) {
    factors.insert(weights.extract(adapter.a()));
    factors.insert(weights.extract(adapter.b()));
  }
  auto detached_model = std::make_unique<DetachedModel>(std::as_bytes(std::span(bytes)), weights,
                                                        folder, options.limits);
  write_adapters(*detached_model, factors, merge);
  if (!for_inference) return detached_model;
  if (!model.loss_output.empty()) {
    detached_model->set_skeleton(strip_loss(std::as_bytes(std::span(detached_model->skeleton())),
                                            model.loss_output, options.label));
  }
  rewrite_for_inference(*detached_model);
  return detached_model;
}

std::vector<std::string> TrainingSession::Impl::stored() const {
  std::vector<std::string> names = model.parameters;
  names.insert(names.end(), model.statistics.begin(), model.statistics.end());
  return names;
}

std::vector<std::string> TrainingSession::Impl::optimizer_states() const {
  std::vector<std::string> names = model.moments;
  names.insert(names.end(), model.counts.begin(), model.counts.end());
  return names;
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
