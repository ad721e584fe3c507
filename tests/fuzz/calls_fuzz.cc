// Calls of the C API that the input bytes determine: functions, their order, handles (live, freed,
// of another kind, null), and arrays with wrong types, extents and sizes. Each call returns a code
// that the header declares, and an error exactly when the code is not STEEP_OK; no call terminates
// the process.

#include <omp.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "calls.h"
#include "runtime/memory.h"

namespace steep::fuzz {

void Caller::set_options() {
  auto* options = handle<steep_options>(kOptions);
  const char* name = key();
  const std::vector<const char*> some = texts();
  steep_options* made = nullptr;
  steep_code code = STEEP_OK;
  switch (pick(8)) {
    case 0: {
      steep_options** place = result(made);
      code = steep_options_new(static_cast<int32_t>(pick(10)), place, error());
      look("options_new", code);
      return keep(kOptions, code, made);
    }
    case 1:
      code = steep_options_set_number(options, name, number(), error());
      return look("options_set_number", code);
    case 2:
      code = steep_options_set_integer(options, name, integer(), error());
      return look("options_set_integer", code);
    case 3: {
      const char* value = text();
      code = steep_options_add(options, name, value, error());
      return look("options_add", code);
    }
    case 4: {
      auto* group = handle<steep_options>(kOptions);
      code = steep_options_add_group(options, some.data(), some.size(), group, error());
      return look("options_add_group", code);
    }
    case 5: {
      const char* output = text();
      code = steep_options_add_update(options, text(), output, error());
      return look("options_add_update", code);
    }
    case 6:
      code = steep_options_add_provider(options, one_in(2) ? "CPUExecutionProvider" : text(),
                                        some.data(), some.data(), some.size(), error());
      return look("options_add_provider", code);
    default: {
      const char* value = text();
      code = steep_options_set_string(options, name, value, error());
      return look("options_set_string", code);
    }
  }
}

void Caller::train() {
  auto* session = handle<steep_training>(kTraining);
  const std::vector<steep_array> fed = arrays({"x", "label"});
  const steep_array* first = one_in(16) ? nullptr : fed.data();
  steep_tensors* made = nullptr;
  steep_tensors** place = result(made);
  steep_step step;
  steep_evaluation evaluation;
  steep_plan plan;
  double loss = 0;
  int64_t parts = 0;
  steep_bytes* bytes = nullptr;
  steep_memory* memory = nullptr;
  steep_code code = STEEP_OK;
  switch (pick(11)) {
    case 0:
      code = steep_training_step(session, first, fed.size(), result(step), place, error());
      break;
    case 1:
      code = steep_training_accumulate(session, first, fed.size(), result(step), place, error());
      break;
    case 2: code = steep_training_apply_gradients(session, result(step), error()); break;
    case 3:
      code = steep_training_eval(session, first, fed.size(), result(evaluation), place, error());
      break;
    case 4:
      code = steep_training_gradients(session, first, fed.size(), result(loss), place, error());
      break;
    case 5: code = steep_training_plan(session, first, fed.size(), result(plan), error()); break;
    case 6:
      code = one_in(2) ? steep_training_drop_gradients(session, error())
                       : steep_training_accumulated(session, result(parts), error());
      break;
    case 7: {
      steep_memory_report report;
      code = steep_training_memory_report(session, first, fed.size(), result(memory), error());
      look("training_memory_report", code);
      keep(kMemory, code, memory);
      code = steep_memory_get(handle<steep_memory>(kMemory), result(report), error());
      return look("memory_get", code);
    }
    case 8:
      code =
          steep_training_accumulated_gradients(session, result(loss), result(loss), place, error());
      break;
    case 9: code = steep_training_set_accumulated(session, number(), number(), error()); break;
    default: {
      const auto format = static_cast<int32_t>(pick(5)) - 1;
      code = steep_training_dump(session, first, fed.size(), format, &bytes, error());
      look("training_dump", code);
      return keep(kBytes, code, bytes);
    }
  }
  look("training_step and the like", code);
  keep(kTensors, code, made);
}

void Caller::train_settings() {
  auto* session = handle<steep_training>(kTraining);
  const std::vector<steep_array> weights = arrays({"w"});
  const std::vector<steep_array> moments = arrays({"exp_avg/w"});
  const std::vector<const char*> some = texts();
  const char* const* names = one_in(2) ? nullptr : some.data();
  const char* word = text();
  steep_tensors* made = nullptr;
  steep_tensors** place = result(made);
  steep_bytes* bytes = nullptr;
  double value = 0;
  static const std::string saved = (folder() / "checkpoint").string();
  switch (pick(14)) {
    case 0: look("set_lr", steep_training_set_lr(session, number(), error())); break;
    case 1: look("lr", steep_training_lr(session, result(value), error())); break;
    case 2: look("set_seed", steep_training_set_seed(session, 3, error())); break;
    case 3:
      look("set_step_count", steep_training_set_step_count(session, integer(), error()));
      break;
    case 4:
      look("set_loss_scale", steep_training_set_loss_scale(session, number(), error()));
      break;
    case 5:
      look("set_schedule",
           steep_training_set_schedule(session, word, integer(), integer(), number(), error()));
      break;
    case 6:
      look("set_group",
           steep_training_set_group(session, pick(3), handle<steep_options>(kOptions), error()));
      break;
    case 7:
      look("set_weights",
           steep_training_set_weights(session, weights.data(), weights.size(), error()));
      break;
    case 8:
      look("set_optimizer_state",
           steep_training_set_optimizer_state(session, moments.data(), moments.size(), error()));
      break;
    case 9: {
      const steep_code code = steep_training_weights(session, names, some.size(), place, error());
      look("weights", code);
      keep(kTensors, code, made);
      break;
    }
    case 10: {
      const steep_code code = steep_training_state(session, word, place, error());
      look("state", code);
      keep(kTensors, code, made);
      break;
    }
    case 11:
      look("save_checkpoint", steep_training_save_checkpoint(session, saved.c_str(),
                                                             one_in(4) ? word : "{}", error()));
      break;
    case 12: {
      const steep_code code =
          steep_training_load_checkpoint(session, saved.c_str(), &bytes, error());
      look("load_checkpoint", code);
      keep(kBytes, code, bytes);
      break;
    }
    default: {
      auto* options = one_in(2) ? nullptr : handle<steep_options>(kOptions);
      const steep_code code = steep_training_export_bytes(session, options, &bytes, error());
      look("export_bytes", code);
      keep(kBytes, code, bytes);
      break;
    }
  }
}

void Caller::infer() {
  auto* session = handle<steep_inference>(kInference);
  const std::vector<steep_array> fed = arrays({"x"});
  const std::vector<const char*> names = texts();
  steep_tensors* made = nullptr;
  steep_tensors** place = result(made);
  const bool all = !one_in(4);
  const char* const* chosen = all ? nullptr : names.data();
  const size_t count = all ? 0 : names.size();
  steep_code code = STEEP_OK;
  if (one_in(4)) {
    steep_data* outputs = nullptr;
    code = steep_inference_run_data(session, handle<steep_data>(kData), chosen, count,
                                    result(outputs), error());
    look("inference_run_data", code);
    return keep(kData, code, outputs);
  }
  if (one_in(6)) {
    steep_bytes* text = nullptr;
    code = steep_inference_dump(session, fed.data(), fed.size(), static_cast<int32_t>(pick(4)),
                                result(text), error());
    look("inference_dump", code);
    return keep(kBytes, code, text);
  }
  code = steep_inference_run(session, fed.data(), fed.size(), chosen, count, place, error());
  look("inference_run", code);
  keep(kTensors, code, made);
}

void Caller::values() {
  auto* data = handle<steep_data>(kData);
  const char* name = text();
  const std::vector<steep_array> some = arrays({"x", "w"});
  const steep_array* first = one_in(16) ? nullptr : some.data();
  steep_data* made = nullptr;
  steep_datum datum;
  switch (pick(5)) {
    case 0: {
      const steep_code code = steep_data_new(result(made), error());
      look("data_new", code);
      return keep(kData, code, made);
    }
    case 1:
      return look("data_add_tensor",
                  steep_data_add_tensor(data, some.empty() ? nullptr : first, error()));
    case 2:
      return look("data_add_sequence",
                  steep_data_add_sequence(data, name, first, some.size(), error()));
    case 3: return look("data_add_absent", steep_data_add_absent(data, name, error()));
    default:
      return look("data_get",
                  steep_data_get(data, pick(steep_data_count(data) + 2), result(datum), error()));
  }
}

void Caller::batches() {
  auto* batches = handle<steep_batches>(kBatches);
  if (one_in(2)) {
    static const std::vector<int64_t> rows = {0, 1, 2, -1, 0};
    auto* options = one_in(2) ? nullptr : handle<steep_options>(kOptions);
    steep_batches* made = nullptr;
    const steep_code code =
        steep_batches_new(handle<steep_tensors>(kTensors), options,
                          one_in(2) ? nullptr : rows.data(), pick(5), result(made), error());
    look("batches_new", code);
    return keep(kBatches, code, made);
  }
  steep_tensors* taken = nullptr;
  const steep_code code = steep_batches_get(batches, integer(), integer(), result(taken), error());
  look("batches_get", code);
  keep(kTensors, code, taken);
}

/// With one process, which the environment says there is, where the plug-in lies beside this
/// program.
void Caller::peers() {
  auto* processes = handle<steep_peers>(kPeers);
  const std::vector<steep_array> some = arrays({"x", "w"});
  const steep_array* first = one_in(16) || some.empty() ? nullptr : some.data();
  const char* word = text();
  steep_peers* made = nullptr;
  steep_tensors* every = nullptr;
  steep_strings* texts = nullptr;
  int32_t rank = 0;
  steep_code code = STEEP_OK;
  switch (pick(6)) {
    case 0:
      code = steep_peers_connect(one_in(4) ? word : "gloo", result(made), error());
      look("peers_connect", code);
      return keep(kPeers, code, made);
    case 1: code = steep_peers_place(processes, result(rank), result(rank), error()); break;
    case 2: code = steep_peers_gather(processes, first, result(every), error()); break;
    case 3: code = steep_peers_gather_text(processes, word, result(texts), error()); break;
    case 4:
      code = steep_peers_add(processes, first, some.size(), number(), one_in(2) ? word : nullptr,
                             error());
      break;
    default:
      code = steep_peers_copy_from(processes, static_cast<int32_t>(pick(3)) - 1, first, some.size(),
                                   error());
      break;
  }
  look("peers", code);
  keep(kTensors, code, every);
  keep(kStrings, code, texts);
}

void Caller::train_in_ranks() {
  auto* all = handle<steep_parallel>(kParallel);
  const std::vector<steep_array> fed = arrays({"x", "label"});
  const steep_array* first = one_in(16) ? nullptr : fed.data();
  const char* word = text();
  steep_parallel* made = nullptr;
  steep_tensors* tensors = nullptr;
  steep_step step;
  int32_t updated = 0;
  int64_t parts = 0;
  steep_code code = STEEP_OK;
  switch (pick(9)) {
    case 0:
      code = steep_parallel_new(handle<steep_training>(kTraining), handle<steep_peers>(kPeers),
                                one_in(2) ? nullptr : handle<steep_options>(kOptions), result(made),
                                error());
      look("parallel_new", code);
      return keep(kParallel, code, made);
    case 1:
      code = steep_parallel_step(all, first, fed.size(), result(step), result(tensors), error());
      break;
    case 2:
      code = steep_parallel_step_if_any(all, first, fed.size(), result(updated), result(step),
                                        result(tensors), error());
      break;
    case 3:
      code = steep_parallel_accumulate(all, first, fed.size(), integer(), result(step),
                                       result(tensors), error());
      break;
    case 4: code = steep_parallel_apply_if_any(all, result(updated), nullptr, error()); break;
    case 5: code = steep_parallel_accumulated(all, result(parts), error()); break;
    case 6: code = steep_parallel_fail(all, static_cast<int32_t>(pick(14)), word, error()); break;
    case 7: code = steep_parallel_set_loaded(all, word, error()); break;
    default: code = steep_parallel_optimizer_state(all, result(tensors), error()); break;
  }
  look("parallel", code);
  keep(kTensors, code, tensors);
}

void Caller::gradients() {
  auto* session = handle<steep_gradients>(kGradients);
  const std::vector<steep_array> fed = arrays({"x"});
  const std::vector<steep_array> weights = arrays({"w"});
  const std::vector<steep_array> slopes = arrays({"y"});
  steep_tensors* made = nullptr;
  steep_tensors** place = result(made);
  steep_run* run = nullptr;
  steep_code code = STEEP_OK;
  switch (pick(7)) {
    case 0: {
      code = steep_gradients_backward(session, handle<steep_run>(kRun), slopes.data(),
                                      slopes.size(), place, error());
      break;
    }
    case 1: code = steep_gradients_eval(session, fed.data(), fed.size(), place, error()); break;
    case 2:
      code = steep_gradients_set_weights(session, weights.data(), weights.size(), error());
      break;
    case 3: code = steep_gradients_weights(session, place, error()); break;
    case 4:
      code = steep_gradients_flatten(session, weights.data(), weights.size(), place, error());
      break;
    default: {
      steep_run** of_run = result(run);
      code = steep_gradients_forward(session, fed.data(), fed.size(), place, of_run, error());
      keep(kRun, code, run);
      break;
    }
  }
  look("gradients", code);
  keep(kTensors, code, made);
}

void Caller::read() {
  auto* tensors = handle<steep_tensors>(kTensors);
  steep_array array;
  const steep_value* values = nullptr;
  const char* const* names = nullptr;
  size_t count = 0;
  const char* word = text();
  steep_obstacle obstacle;
  switch (pick(8)) {
    case 0: {
      const steep_code code = steep_tensors_get(tensors, pick(4), &array, error());
      look("tensors_get", code);
      if (code == STEEP_OK && array.bytes > 0) {  // the bytes are readable
        volatile uint8_t last = static_cast<const uint8_t*>(array.data)[array.bytes - 1];
        static_cast<void>(last);
      }
      break;
    }
    case 1: look("tensors_find", steep_tensors_find(tensors, word, result(array), error())); break;
    case 2:
      look("training_inputs", steep_training_inputs(handle<steep_training>(kTraining),
                                                    result(values), result(count), error()));
      break;
    case 3:
      look("training_parameters", steep_training_parameters(handle<steep_training>(kTraining),
                                                            result(names), result(count), error()));
      break;
    case 4:
      look("gradients_outputs", steep_gradients_outputs(handle<steep_gradients>(kGradients),
                                                        result(values), result(count), error()));
      break;
    case 5:
      look("report_obstacle", steep_report_obstacle(handle<steep_report>(kReport), pick(3),
                                                    result(obstacle), error()));
      break;
    case 6: {
      auto* bytes = handle<steep_bytes>(kBytes);
      const char* first = steep_bytes_data(bytes);
      if (first == nullptr || first[steep_bytes_size(bytes)] != 0) std::abort();
      ++calls_;
      break;
    }
    default:
      if (steep_strings_get(handle<steep_strings>(kStrings), pick(4)) == nullptr) std::abort();
      if (steep_error_message(handle<steep_error>(kError)) == nullptr) std::abort();
      ++calls_;
      break;
  }
}

void Caller::models() {
  auto* options = one_in(2) ? nullptr : handle<steep_options>(kOptions);
  static const std::string file = (folder() / "arrays.npz").string();
  const std::vector<steep_array> some = arrays({"x", "w"});
  steep_report* report = nullptr;
  steep_bytes* bytes = nullptr;
  steep_tensors* tensors = nullptr;
  steep_strings* strings = nullptr;
  steep_code code = STEEP_OK;
  switch (pick(5)) {
    case 0: code = steep_check_model(path(), options, result(report), error()); break;
    case 1: code = steep_gradient_model(path(), options, result(bytes), error()); break;
    case 2: code = steep_save_arrays(file.c_str(), some.data(), some.size(), error()); break;
    case 3: code = steep_load_arrays(file.c_str(), result(tensors), error()); break;
    default: code = steep_registered_ops(result(strings), error()); break;
  }
  look("of models and files", code);
  keep(kReport, code, report);
  keep(kBytes, code, bytes);
  keep(kTensors, code, tensors);
  keep(kStrings, code, strings);
}

void Caller::release() {
  const auto kind = static_cast<Kind>(pick(kKinds));
  if (one_in(3) && !gone_.empty()) {  // a second free, or one by the function of another kind
    if (free_handle(kind, of(gone_)) != STEEP_ERROR_ARGUMENT) std::abort();
  } else if (!live_[kind].empty()) {
    free_last(kind);
  }
  ++calls_;
}

void Caller::call() {
  switch (pick(14)) {
    case 0: return set_options();
    case 1: return open();
    case 2: return train();
    case 3: return train_settings();
    case 4: return infer();
    case 5: return gradients();
    case 6: return read();
    case 7: return models();
    case 8: return release();
    case 9: return values();
    case 10: return batches();
    case 11: return peers();
    case 12: return train_in_ranks();
    default: return one_in(2) ? train() : gradients();
  }
}

}  // namespace steep::fuzz

using namespace steep::fuzz;  // NOLINT: the functions of C stand in no namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  omp_set_num_threads(1);
  steep::set_allocation_hook([](size_t bytes) { return bytes <= kMaxBlock; });
  std::filesystem::create_directories(folder());
  setenv("STEEP_RANK", "0", 1);
  setenv("STEEP_SIZE", "1", 1);
  setenv("STEEP_RENDEZVOUS", folder().c_str(), 1);
  std::ofstream(folder() / "model.onnx", std::ios::binary) << model_of_all();
  std::atexit([] {
    std::error_code ignored;
    std::filesystem::remove_all(folder(), ignored);
  });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Caller caller(data, size);
  caller.set_up();
  while (!caller.done()) caller.call();
  return 0;
}
