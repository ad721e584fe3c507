// The adapters of a TrainingSession: in the imported model, and in the exported one.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

#include "model/read/data_places.h"
#include "sessions/training_impl.h"
#include "steep/error.h"
#include "train/adapters.h"
#include "train/parameters.h"

namespace steep {

ImportedModel TrainingSession::Impl::import_adapted() {
  ImportOptions how{.limits = options.limits,
                    .leave_out = true,
                    .named = named_in(options),
                    .open_batch = !options.loss.empty()};
  for (const auto& update : options.updates) how.states.insert(update.first);
  check_adapter_options(options);
  if (options.lora_rank == 0)
    return import_model(std::as_bytes(std::span(bytes)), how, folder, weight_data);
  AdaptedModel adapted = with_adapters(std::as_bytes(std::span(bytes)), options);
  adapters = std::move(adapted.adapters);
  // Nothing is folded from states: a program unpacks them for each run, and keeps no floats.
  packed = std::move(adapted.packed);
  how.states.insert(packed.begin(), packed.end());
  std::map<std::string, Tensor> values = weight_data;
  if (options.offload == "frozen") {
    for (const auto& given : weight_data) adapted.frozen.erase(given.first);
    leave_on_disk(adapted, &values);
    for (const auto& entry : places) how.states.insert(entry.first);
    how.before.data = data_files;
  }
  return import_model(std::as_bytes(std::span(adapted.bytes)), how, folder, values);
}

void TrainingSession::Impl::leave_on_disk(const AdaptedModel& adapted,
                                          std::map<std::string, Tensor>* values) {
  for (auto& [name, placed] : place_initializers(std::as_bytes(std::span(adapted.bytes)), folder,
                                                 adapted.frozen, &data_files)) {
    places.emplace(name, std::move(placed.place));
    values->emplace(name, std::move(placed.type));
  }
  if (!places.empty()) return;
  throw ModelError(ErrorParts{
      .what = "No weight can stay in its file.",
      .node = "offload",
      .expected = "a frozen weight of at least a page, as external data beside the model",
      .received = folder.empty() ? "a model without a folder" : "no such external data",
      .remedy = "Save the model with external data (onnx.save(…, save_as_external_data=True)) and "
                "give its path; or leave out offload (--offload)."});
}

void TrainingSession::Impl::leave_out_unused_adapters() {
  const std::unordered_set<std::string> trained(model.parameters.begin(), model.parameters.end());
  std::erase_if(adapters, [&](const Adapter& adapter) {
    const size_t count = trained.count(adapter.a()) + trained.count(adapter.b());
    if (count == 2) return false;
    if (count == 1) {
      throw ModelError(ErrorParts{
          .what = "One half of an adapter is frozen.",
          .node = adapter.weight,
          .expected = fmt::format("both '{}' and '{}' trained", adapter.a(), adapter.b()),
          .received = fmt::format("'{}' frozen",
                                  trained.count(adapter.a()) == 0 ? adapter.a() : adapter.b()),
          .remedy = "Name the weight itself in `frozen` (--freeze): it then has no adapter."});
    }
    model.left_out.push_back(
        {adapter.weight, "has an adapter that is frozen, or that the loss does not depend on"});
    return true;
  });
}

void TrainingSession::Impl::write_adapters(DetachedModel& file,
                                           const std::map<std::string, Tensor>& values,
                                           bool merge) const {
  std::vector<Adapter> beside, merging;
  for (const Adapter& adapter : adapters)
    (merge && adapter.merges ? merging : beside).push_back(adapter);
  merge_adapters(file, merging, values);
  add_adapters(file, beside, values);
}

}  // namespace steep
