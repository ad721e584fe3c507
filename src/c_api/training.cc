// steep_training_…: TrainingSession.
#include "c_api/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>

#include "c_api/arrays.h"
#include "c_api/call.h"
#include "c_api/options.h"
#include "runtime/counted.h"
#include "steep/steep.h"
#include "steep_artifact.h"

namespace steep::c_api {
namespace {

/// Calls with(inputs), by name or in order, as the caller gave them.
template <typename Run>
auto run(const Feed& feed, Run&& with) {
  if (feed.in_order()) return with(std::span<const Tensor>(feed.tensors()));
  return with(feed.named());
}

void give_session(steep_training** result, TrainingSession session) {
  give(result, std::make_shared<Training>(std::move(session)));
}

}  // namespace
}  // namespace steep::c_api

using namespace steep::c_api;  // NOLINT: functions of C are in no namespace

extern "C" {

steep_code steep_training_open(const char* path, const steep_options* options,
                               steep_training** session, steep_error** error) {
  return call(error, [&] {
    require(session, "session");
    const std::string file = text(path, "path");
    give_session(session, steep::TrainingSession(
                              file, options_or_defaults<steep::TrainingOptions>(options)));
  });
}

steep_code steep_training_open_bytes(const void* model, size_t size, const char* folder,
                                     const steep_options* options, steep_training** session,
                                     steep_error** error) {
  return call(error, [&] {
    require(session, "session");
    give_session(session,
                 steep::TrainingSession(bytes_of(model, size),
                                        options_or_defaults<steep::TrainingOptions>(options),
                                        folder == nullptr ? "" : folder));
  });
}

steep_code steep_training_open_weights(const void* model, size_t size, const steep_options* options,
                                       const steep_array* weights, size_t count,
                                       steep_training** session, steep_error** error) {
  return call(error, [&] {
    require(session, "session");
    give_session(session,
                 steep::TrainingSession(bytes_of(model, size),
                                        options_or_defaults<steep::TrainingOptions>(options),
                                        Feed(weights, count).named()));
  });
}

steep_code steep_training_free(steep_training* session) { return release<Training>(session); }

// --- running ------------------------------------------------------------------------------------

steep_code steep_training_step(steep_training* session, const steep_array* inputs, size_t count,
                               steep_step* step, steep_tensors** outputs, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    const Feed feed(inputs, count);
    const steep::StepResult result =
        run(feed, [&](const auto& arrays) { return own->session.step(arrays); });
    give_tensors(outputs, own->step_outputs, result.outputs, feed);
    put_step(step, result);
  });
}

steep_code steep_training_accumulate(steep_training* session, const steep_array* inputs,
                                     size_t count, steep_step* step, steep_tensors** outputs,
                                     steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    const Feed feed(inputs, count);
    const steep::StepResult result =
        run(feed, [&](const auto& arrays) { return own->session.accumulate(arrays); });
    give_tensors(outputs, own->step_outputs, result.outputs, feed);
    put_step(step, result);
  });
}

steep_code steep_training_apply_gradients(steep_training* session, steep_step* step,
                                          steep_error** error) {
  return call(error, [&] { put_step(step, session_of(session)->session.apply_gradients()); });
}

steep_code steep_training_accumulated(const steep_training* session, int64_t* parts,
                                      steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(parts, "parts");
    *parts = own->session.accumulated();
  });
}

steep_code steep_training_drop_gradients(steep_training* session, steep_error** error) {
  return call(error, [&] { session_of(session)->session.drop_gradients(); });
}

steep_code steep_training_accumulated_gradients(steep_training* session, double* weight,
                                                double* loss, steep_tensors** sums,
                                                steep_error** error) {
  return call(error, [&] {
    const steep::AccumulatedGradients gradients =
        session_of(session)->session.accumulated_gradients();
    give_tensors(sums, gradients.sums);
    if (weight != nullptr) *weight = gradients.weight;
    if (loss != nullptr) *loss = gradients.loss;
  });
}

steep_code steep_training_set_accumulated(steep_training* session, double weight, double loss,
                                          steep_error** error) {
  return call(error, [&] { session_of(session)->session.set_accumulated(weight, loss); });
}

steep_code steep_training_eval(steep_training* session, const steep_array* inputs, size_t count,
                               steep_evaluation* evaluation, steep_tensors** outputs,
                               steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    const Feed feed(inputs, count);
    const steep::EvalResult result =
        run(feed, [&](const auto& arrays) { return own->session.eval(arrays); });
    give_tensors(outputs, own->outputs.names(), result.outputs, feed);
    if (evaluation == nullptr) return;
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    *evaluation = {.loss = result.loss.value_or(kNone),
                   .weight = result.weight.value_or(kNone),
                   .has_loss = result.loss.has_value(),
                   .has_weight = result.weight.has_value()};
  });
}

steep_code steep_training_gradients(steep_training* session, const steep_array* inputs,
                                    size_t count, double* loss, steep_tensors** gradients,
                                    steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(gradients, "gradients");
    const Feed feed(inputs, count);
    double value = 0;
    auto all =
        run(feed, [&](const auto& arrays) { return own->session.gradients(arrays, &value); });
    for (auto& [name, gradient] : all) gradient = feed.own(gradient);
    give_tensors(gradients, std::move(all));
    if (loss != nullptr) *loss = value;
  });
}

// --- what there is ------------------------------------------------------------------------------

steep_code steep_training_inputs(const steep_training* session, const steep_value** inputs,
                                 size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->inputs.put(inputs, count); });
}

steep_code steep_training_outputs(const steep_training* session, const steep_value** outputs,
                                  size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->outputs.put(outputs, count); });
}

steep_code steep_training_parameters(const steep_training* session, const char* const** names,
                                     size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->parameters.put(names, count); });
}

steep_code steep_training_statistics(const steep_training* session, const char* const** names,
                                     size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->statistics.put(names, count); });
}

steep_code steep_training_state_names(const steep_training* session, const char* const** names,
                                      size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->state.put(names, count); });
}

steep_code steep_training_adapted(const steep_training* session, const char* const** names,
                                  size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->adapted.put(names, count); });
}

steep_code steep_training_left_out(const steep_training* session, const char* const** names,
                                   const char* const** reasons, size_t* count,
                                   steep_error** error) {
  return call(error, [&] { session_of(session)->left_out.put(names, reasons, count); });
}

steep_code steep_training_warnings(const steep_training* session, const char* const** texts,
                                   size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->warnings.put(texts, count); });
}

// --- weights ------------------------------------------------------------------------------------

steep_code steep_training_weights(const steep_training* session, const char* const* names,
                                  size_t count, steep_tensors** weights, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(weights, "weights");
    give_chosen(weights, names, count, own->session.weights());
  });
}

steep_code steep_training_optimizer_state(const steep_training* session, const char* const* names,
                                          size_t count, steep_tensors** state,
                                          steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(state, "state");
    give_chosen(state, names, count, own->session.optimizer_state());
  });
}

steep_code steep_training_state(const steep_training* session, const char* name,
                                steep_tensors** state, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(state, "state");
    const std::string state_name = text(name, "name");
    give_tensors(state, {{state_name, own->session.state(state_name)}});
  });
}

steep_code steep_training_set_weights(steep_training* session, const steep_array* weights,
                                      size_t count, steep_error** error) {
  return call(error,
              [&] { session_of(session)->session.set_weights(Feed(weights, count).named()); });
}

steep_code steep_training_set_optimizer_state(steep_training* session, const steep_array* state,
                                              size_t count, steep_error** error) {
  return call(
      error, [&] { session_of(session)->session.set_optimizer_state(Feed(state, count).named()); });
}

// --- settings -----------------------------------------------------------------------------------

steep_code steep_training_lr(const steep_training* session, double* lr, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(lr, "lr");
    *lr = own->session.lr();
  });
}

steep_code steep_training_set_lr(steep_training* session, double lr, steep_error** error) {
  return call(error, [&] { session_of(session)->session.set_lr(lr); });
}

steep_code steep_training_step_count(const steep_training* session, int64_t* count,
                                     steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(count, "count");
    *count = own->session.step_count();
  });
}

steep_code steep_training_set_step_count(steep_training* session, int64_t count,
                                         steep_error** error) {
  return call(error, [&] { session_of(session)->session.set_step_count(count); });
}

steep_code steep_training_loss_scale(const steep_training* session, double* scale,
                                     steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(scale, "scale");
    *scale = own->session.loss_scale();
  });
}

steep_code steep_training_set_loss_scale(steep_training* session, double scale,
                                         steep_error** error) {
  return call(error, [&] { session_of(session)->session.set_loss_scale(scale); });
}

steep_code steep_training_run_count(const steep_training* session, uint64_t* count,
                                    steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(count, "count");
    *count = own->session.run_count();
  });
}

steep_code steep_training_set_run_count(steep_training* session, uint64_t count,
                                        steep_error** error) {
  return call(error, [&] { session_of(session)->session.set_run_count(count); });
}

steep_code steep_training_set_seed(steep_training* session, uint64_t seed, steep_error** error) {
  return call(error, [&] { session_of(session)->session.set_seed(seed); });
}

steep_code steep_training_set_schedule(steep_training* session, const char* kind,
                                       int64_t warmup_steps, int64_t total_steps,
                                       double min_lr_ratio, steep_error** error) {
  return call(error, [&] {
    session_of(session)->session.set_schedule({.kind = text(kind, "kind"),
                                               .warmup_steps = warmup_steps,
                                               .total_steps = total_steps,
                                               .min_lr_ratio = min_lr_ratio});
  });
}

steep_code steep_training_set_group(steep_training* session, size_t i, const steep_options* group,
                                    steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    const steep::ParameterGroup settings = options<GroupOptions>(group).group();
    if (!settings.optimizer) {
      throw ArgumentError({.what = "set_group needs options that name an optimizer for the group.",
                           .expected = "steep_options of groups with the key `optimizer`",
                           .received = "none"});
    }
    own->session.set_group(i, *settings.optimizer);
  });
}

// --- files --------------------------------------------------------------------------------------

steep_code steep_training_save_checkpoint(const steep_training* session, const char* path,
                                          const char* user, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    own->session.save_checkpoint(text(path, "path"), user == nullptr ? "{}" : user);
  });
}

steep_code steep_training_load_checkpoint(steep_training* session, const char* path,
                                          steep_bytes** user, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    give_bytes(user, own->session.load_checkpoint(text(path, "path")));
  });
}

steep_code steep_training_batch_note(const steep_training* session, steep_bytes** note,
                                     steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(note, "note");
    give_bytes(note, own->session.batch_note());
  });
}

steep_code steep_training_checkpoint_note(const steep_training* session, steep_bytes** note,
                                          steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(note, "note");
    give_bytes(note, own->session.checkpoint_note());
  });
}

steep_code steep_training_checkpoint_hash(const steep_training* session, steep_bytes** hash,
                                          steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(hash, "hash");
    give_bytes(hash, own->session.checkpoint_hash());
  });
}

steep_code steep_training_save_artifact(const steep_training* session, const char* path,
                                        const steep_array* inputs, size_t count, size_t batches,
                                        steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    const std::string file = text(path, "path");
    if (batches == 0 || count == 0 || count % batches != 0) {
      throw ArgumentError({.what = "The batches of an artifact are not of one length.",
                           .expected = "as many arrays for each of at least one batch",
                           .received = fmt::format("{}, {}", steep::counted(count, "array"),
                                                   steep::counted(batches, "batch", "batches"))});
    }
    require(inputs, "inputs");
    const size_t each = count / batches;
    std::vector<steep::TensorInfo> infos = own->inputs.infos();
    infos.resize(std::min(infos.size(), each));  // the label is last and optional
    std::vector<std::vector<steep::Tensor>> feeds;
    for (size_t i = 0; i < batches; ++i)
      feeds.push_back(Feed(inputs + i * each, each).ordered(infos));
    own->session.save_artifact(file, feeds);
  });
}

steep_code steep_training_export(const steep_training* session, const char* path,
                                 const steep_options* options, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    own->session.export_onnx(text(path, "path"),
                             options_or_defaults<steep::ExportOptions>(options));
  });
}

steep_code steep_training_export_bytes(const steep_training* session, const steep_options* options,
                                       steep_bytes** model, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(model, "model");
    const auto how = options_or_defaults<steep::ExportOptions>(options);
    if (how.external_data || how.max_file_bytes != steep::ExportOptions{}.max_file_bytes) {
      throw ArgumentError({.what = "A model in memory has no other files.",
                           .expected = "neither external_data nor max_file_bytes",
                           .received = how.external_data ? "external_data" : "max_file_bytes",
                           .remedy = "Write a file by steep_training_export()."});
    }
    give_bytes(model, own->session.export_onnx_bytes(how.for_inference, how.merge_adapters));
  });
}

}  // extern "C"
