// TrainingSession: arrays in, arrays out. Small models call step() with positional arrays in every
// step, so that path constructs nothing but its result.
#include <nanobind/stl/array.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <vector>

#include "bindings.h"
#include "device/device.h"
#include "steep/error.h"
#include "steep/steep.h"
#include "train/option_rows.h"

namespace steep::python {
namespace {

std::vector<Tensor> tensors_of(const nb::tuple& args) {
  std::vector<Tensor> inputs;
  inputs.reserve(args.size());
  for (nb::handle a : args) inputs.push_back(to_tensor(a));
  return inputs;
}

/// Throws DataError for a weight that the session must write, but whose memory is not writable.
void require_writable(const TrainingSession& session,
                      const std::map<std::string, std::string>& unwritable) {
  std::vector<std::string> names = session.parameter_names();
  for (std::string& name : session.statistic_names()) names.push_back(std::move(name));
  for (const std::string& name : names) {
    const auto found = unwritable.find(name);
    if (found == unwritable.end()) continue;
    throw DataError({.what = "The memory of a trained weight cannot be updated in place.",
                     .node = name,
                     .expected = "a writable, contiguous array",
                     .received = found->second,
                     .remedy = "Pass a copy of your own, numpy.array(w, order=\"C\"), or name the "
                               "weight in `frozen`."});
  }
}

nb::dict to_dict(const std::map<std::string, Tensor>& tensors) {
  nb::dict out;
  for (const auto& [name, tensor] : tensors) out[name.c_str()] = tensor;
  return out;
}

/// A call that waits must not hold the GIL, because the thread that it waits for may need it.
template <typename F>
auto unlocked_call(F&& call) {
  const nb::gil_scoped_release release;
  return call();
}

nb::list to_list(const std::vector<Tensor>& tensors) {
  nb::list out;
  for (const Tensor& t : tensors) out.append(t);
  return out;
}

StepResult step_or_part(TrainingSession& s, const nb::args& arrays,
                        const nb::kwargs& named_arrays) {
  bool part = false;
  nb::dict rest;
  for (auto [key, value] : named_arrays) {
    // The model may have an input of this name. Its value would be an array, not a bool.
    if (nb::cast<std::string>(key) == "accumulate" && nb::isinstance<nb::bool_>(value)) {
      part = nb::cast<bool>(value);
    } else {
      rest[key] = value;
    }
  }
  if (!arrays.empty() && !rest.empty()) {
    throw DataError({.what = "Inputs are given in order or by name, not both.",
                     .expected = "arrays alone, or names alone",
                     .received = nb::cast<std::string>(nb::str(rest.keys()))});
  }
  if (!arrays.empty()) {
    const std::vector<Tensor> inputs = tensors_of(arrays);
    return unlocked_call([&] { return part ? s.accumulate(inputs) : s.step(inputs); });
  }
  const TrainingSession::Inputs inputs = named(rest);
  return unlocked_call([&] { return part ? s.accumulate(inputs) : s.step(inputs); });
}

/// Returns a function that defines an option row as an attribute of a class.
template <typename Class>
auto into(Class& binding) {
  return [&binding](const OptionRow& row, auto member) {
    binding.def_rw(row.field.data(), member, row.help.data());
  };
}

void init_options(nb::module_& m) {
  nb::class_<OptimizerOptions> optimizer(m, "OptimizerOptions");
  optimizer.def(nb::init<>()).def_rw("attributes", &OptimizerOptions::attributes);
  visit_optimizer_options(into(optimizer));
  nb::class_<ParameterGroup>(m, "ParameterGroup")
      .def(nb::init<>())
      .def_rw("names", &ParameterGroup::names)
      .def_rw("lr_multiplier", &ParameterGroup::lr_multiplier)
      .def_rw("weight_decay", &ParameterGroup::weight_decay)
      .def_rw("optimizer", &ParameterGroup::optimizer);
  nb::class_<ScheduleOptions> schedule(m, "ScheduleOptions");
  schedule.def(nb::init<>());
  visit_schedule_options(into(schedule));
  nb::class_<LossScaleOptions> loss_scale(m, "LossScaleOptions");
  loss_scale.def(nb::init<>());
  visit_loss_scale_options(into(loss_scale));
  nb::class_<TrainingOptions> training(m, "TrainingOptions",
                                       "See include/steep/steep.h for the fields.");
  training.def(nb::init<>())
      .def_rw("groups", &TrainingOptions::groups)
      .def_rw("optimizer", &TrainingOptions::optimizer)
      .def_rw("schedule", &TrainingOptions::schedule)
      .def_rw("loss_scale", &TrainingOptions::loss_scale)
      .def_rw("updates", &TrainingOptions::updates)
      .def_rw("limits", &TrainingOptions::limits)
      .def_rw("providers", &TrainingOptions::providers)
      .def_prop_rw(
          "loss_model",
          [](const TrainingOptions& o) {
            return nb::bytes(o.loss_model.data(), o.loss_model.size());
          },
          [](TrainingOptions& o, const nb::bytes& model) {
            o.loss_model.assign(model.c_str(), model.size());
          },
          "A loss as the bytes of an ONNX model (scores, labels) => (loss).");
  visit_model_options(into(training));
  visit_step_options(into(training));
}

/// (part of TrainingOptions or "", field, key, flag, help) of a row.
using Row = std::array<std::string, 5>;

std::vector<Row> option_rows() {
  std::vector<Row> rows;
  const auto of = [&](const std::string& part) {
    return [&rows, part](const OptionRow& row, auto) {
      rows.push_back({part, std::string(row.field), std::string(row.key), std::string(row.flag),
                      std::string(row.help)});
    };
  };
  visit_model_options(of(""));
  visit_optimizer_options(of("optimizer"));
  visit_schedule_options(of("schedule"));
  visit_loss_scale_options(of("loss_scale"));
  visit_step_options(of(""));
  return rows;
}

void init_results(nb::module_& m) {
  nb::class_<StepResult>(m, "StepResult", "What one training step did.")
      .def(
          "__init__",
          [](StepResult* self, double loss, double lr, double grad_norm, int64_t step, bool skipped,
             double loss_scale, const std::vector<Tensor>& outputs) {
            new (self) StepResult{loss, lr, grad_norm, step, skipped, loss_scale, outputs};
          },
          nb::kw_only(), nb::arg("loss"), nb::arg("lr"), nb::arg("grad_norm"), nb::arg("step"),
          nb::arg("skipped"), nb::arg("loss_scale"), nb::arg("outputs"),
          "Of a step whose parts ran apart.")
      .def_ro("loss", &StepResult::loss)
      .def_ro("lr", &StepResult::lr, "The learning rate that this step used.")
      .def_ro("grad_norm", &StepResult::grad_norm,
              "Global norm of the gradients before clipping; 0 unless asked for.")
      .def_ro("step", &StepResult::step, "Number of steps done, this one included.")
      .def_ro("skipped", &StepResult::skipped,
              "Gradients overflowed at this loss scale: nothing was updated.")
      .def_ro("loss_scale", &StepResult::loss_scale, "That this step used; 1 without fp16.")
      .def_prop_ro(
          "outputs", [](const StepResult& r) { return to_list(r.outputs); },
          nb::sig("def outputs(self) -> list[Tensor]"), "The outputs named by `step_outputs`.")
      .def("__float__", [](const StepResult& r) { return r.loss; });
  nb::class_<AccumulatedGradients>(m, "AccumulatedGradients", "Gradients that wait.")
      .def_ro("parts", &AccumulatedGradients::parts)
      .def_ro("weight", &AccumulatedGradients::weight, "What the sums are divided by.")
      .def_ro("weighs", &AccumulatedGradients::weighs,
              "Is the weight that of labels, as EvalResult.weight? Else each part counts once.")
      .def_ro("loss", &AccumulatedGradients::loss, "Sum of the parts' losses times weights.")
      .def_prop_ro(
          "sums", [](const AccumulatedGradients& a) { return to_dict(a.sums); },
          nb::sig("def sums(self) -> dict[str, Tensor]"),
          "By parameter, the sum of gradients times weights; the memory itself, shared.");
  nb::class_<EvalResult>(m, "EvalResult", "What one evaluation gave.")
      .def_ro("loss", &EvalResult::loss, "None when no label was given.")
      .def_ro("weight", &EvalResult::weight,
              "What a mean cross entropy was divided by, where labels are ignored or classes "
              "weigh; else None. Several batches' mean is that of loss times weight.")
      .def_prop_ro(
          "outputs", [](const EvalResult& r) { return to_list(r.outputs); },
          nb::sig("def outputs(self) -> list[Tensor]"), "Every output of the model.");
  nb::class_<LeftOut>(m, "LeftOut", "A float constant that is not trained, and why.")
      .def_ro("name", &LeftOut::name)
      .def_ro("reason", &LeftOut::reason)
      .def("__repr__", [](const LeftOut& l) { return l.name + " " + l.reason; });
  nb::class_<TensorInfo>(m, "TensorInfo", "Name and type of an input or output.")
      .def_ro("name", &TensorInfo::name)
      .def_prop_ro("dtype", [](const TensorInfo& t) { return std::string(name_of(t.dtype)); })
      .def_ro("has_rank", &TensorInfo::has_rank)
      .def_ro("sequence", &TensorInfo::sequence)
      .def_ro("optional", &TensorInfo::optional)
      .def_prop_ro(
          "shape",
          [](const TensorInfo& t) {
            nb::list shape;
            for (size_t i = 0; i < t.dims.size(); ++i) {
              if (t.dims[i] >= 0) {
                shape.append(t.dims[i]);
              } else if (i < t.symbols.size() && !t.symbols[i].empty()) {
                shape.append(t.symbols[i]);
              } else {
                shape.append(nb::none());
              }
            }
            return nb::tuple(shape);
          },
          nb::sig("def shape(self) -> tuple[int | str | None, ...]"),
          "Extents: a number, the name of one that varies, or None.")
      .def("__repr__", [](const TensorInfo& t) { return t.name + ": " + t.text(); });
  nb::class_<CompileStage>(m, "CompileStage",
                           "A stage of the compiler: a pass, or what lies around.")
      .def_ro("name", &CompileStage::name)
      .def_ro("milliseconds", &CompileStage::milliseconds)
      .def_ro("nodes", &CompileStage::nodes, "Of the graph after it.");
  nb::class_<StepPlan>(m, "StepPlan", "What the compiled step costs at one set of input shapes.")
      .def_ro("arena_bytes", &StepPlan::arena_bytes, "Planned peak of intermediate values.")
      .def_ro("parameter_bytes", &StepPlan::parameter_bytes)
      .def_ro("optimizer_bytes", &StepPlan::optimizer_bytes)
      .def_ro("output_bytes", &StepPlan::output_bytes, "The loss and what else is handed out.")
      .def_ro("constant_bytes", &StepPlan::constant_bytes)
      .def_ro("peak_bytes", &StepPlan::peak_bytes, "Of all these together, while a step runs.")
      .def_ro("kernels", &StepPlan::kernels)
      .def_ro("specialise_ms", &StepPlan::specialise_ms)
      .def_ro("stages", &StepPlan::stages, "Of the compiler, in the order in which they ran.")
      .def_ro("run_bytes", &StepPlan::run_bytes,
              "With the inputs, and with moments: what a memory limit bounds.")
      .def_ro("memory_limit", &StepPlan::memory_limit, "In bytes; 0 for none.")
      .def_ro("offloaded_bytes", &StepPlan::offloaded_bytes,
              "Of parameters and moments in the file of offload_folder, which is not memory.")
      .def("__str__", &StepPlan::text);
}

void init_memory_report(nb::module_& m) {
  nb::class_<MemoryChoice>(m, "MemoryChoice", "A node of forward that backward could run again.")
      .def_ro("node", &MemoryChoice::node)
      .def_ro("op", &MemoryChoice::op)
      .def_ro("bytes", &MemoryChoice::bytes, "Of its results.")
      .def_ro("ms", &MemoryChoice::ms, "Modelled: to run it once more.")
      .def_ro("again", &MemoryChoice::again, "Does backward run it again?");
  nb::class_<MemoryPlan>(m, "MemoryPlan", "A plan that the planner found.")
      .def_ro("bytes", &MemoryPlan::bytes, "That it holds at its peak.")
      .def_ro("ms", &MemoryPlan::ms, "Modelled, of all its nodes.");
  nb::class_<MemoryReport>(m, "MemoryReport",
                           "What a step keeps of forward and what backward computes again. Bytes "
                           "are those that a memory limit bounds.")
      .def_ro("limit", &MemoryReport::limit, "In bytes; 0 for none.")
      .def_ro("planned", &MemoryReport::planned, "What runs.")
      .def_ro("plain", &MemoryReport::plain, "What would run without a limit.")
      .def_ro("plans", &MemoryReport::plans,
              "Of which none is both slower and larger than another; the fastest first. The last "
              "is the smallest: its bytes are the least limit.")
      .def_ro("choices", &MemoryReport::choices, "In the order of forward.")
      .def("__str__", &MemoryReport::text);
}

using Session = TrainingSession;

/// For methods that wait or run long: releases the GIL.
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

void construct_from_bytes(Session* self, const nb::bytes& model, const TrainingOptions& options,
                          const nb::dict& weights) {
  const std::span data(reinterpret_cast<const std::byte*>(model.c_str()), model.size());
  Session::Inputs tensors;
  std::map<std::string, std::string> unwritable;
  for (auto [key, value] : weights) {
    const std::string name = nb::cast<std::string>(key);
    std::string why;
    tensors[name] = to_tensor(value, name.c_str(), &why);
    if (!why.empty()) unwritable[name] = why;
  }
  const nb::gil_scoped_release release;
  if (tensors.empty()) {
    new (self) Session(data, options);
  } else {
    Session session(data, options, std::move(tensors));
    require_writable(session, unwritable);
    new (self) Session(std::move(session));
  }
}

void bind_construction(nb::class_<Session>& session) {
  // bytes before path, because bytes convert to a path.
  session
      .def("__init__", &construct_from_bytes, nb::arg("model"), nb::arg("options"),
           nb::arg("weights") = nb::dict(),
           nb::sig("def __init__(self, model: bytes, options: TrainingOptions, "
                   "weights: dict[str, object] = {}) -> None"))
      .def(nb::init<const std::filesystem::path&, TrainingOptions>(), nb::arg("model"),
           nb::arg("options"), Unlocked());
}

void bind_steps(nb::class_<Session>& session) {
  session
      .def(
          "step",
          [](Session& s, const nb::args& arrays) {
            std::vector<Tensor> inputs = tensors_of(arrays);
            const nb::gil_scoped_release release;
            return s.step(inputs);
          },
          nb::sig("def step(self, *arrays: object) -> StepResult"),
          "One training step: forward, backward, update. Arrays in the order "
          "of input_info(), or by name, converted to their types as far as integers "
          "fit and floats stay floats. Labels may have a last axis of one element more or less; "
          "those of softmax_cross_entropy may be whole floats or one-hot rows. Raises "
          "ShapeError and DataError before any weight changes.")
      .def(
          "step", &step_or_part,
          nb::sig("def step(self, *arrays: object, accumulate: bool = False, **named: object) -> "
                  "StepResult"),
          "With accumulate=True, a part of a step: its gradients are added to those that wait for "
          "apply_gradients(), and no weight changes. A part of which no label counts adds nothing.")
      .def("apply_gradients", &Session::apply_gradients, Unlocked(),
           "Clips and updates by the mean of the gradients that wait: as one step of all their "
           "inputs, where parts are of one size and the loss is a mean. Parts of a mean cross "
           "entropy that ignores labels count by their labels. The result's loss is the mean of "
           "the parts'. Raises DataError when none waits.")
      .def_prop_ro("accumulated", &Session::accumulated, Unlocked(),
                   "Parts whose gradients wait. While they do, step() and save_checkpoint() raise "
                   "DataError.")
      .def("drop_gradients", &Session::drop_gradients, Unlocked(),
           "Forgets the gradients that wait.")
      .def("accumulated_gradients", &Session::accumulated_gradients, Unlocked(),
           "The gradients that wait, shared, to combine them with those of other processes: the "
           "sums may be written, and set_accumulated() says what they then are. If there are "
           "none, the sums are set to zero.")
      .def("set_accumulated", &Session::set_accumulated, nb::arg("weight"), nb::arg("loss"),
           Unlocked(),
           "Says of what weight, and of what sum of losses times weights, the sums are. Raises "
           "DataError unless the weight is positive and finite.")
      .def(
          "eval",
          [](Session& s, const nb::args& arrays) {
            std::vector<Tensor> inputs = tensors_of(arrays);
            const nb::gil_scoped_release release;
            return s.eval(inputs);
          },
          nb::sig("def eval(self, *arrays: object) -> EvalResult"),
          "Forward in inference mode. The label may be left out; then there is "
          "no loss.")
      .def(
          "eval",
          [](Session& s, const nb::kwargs& arrays) {
            Session::Inputs inputs = named(arrays);
            const nb::gil_scoped_release release;
            return s.eval(inputs);
          },
          nb::sig("def eval(self, **named: object) -> EvalResult"))
      .def(
          "gradients",
          [](Session& s, const nb::args& arrays) {
            std::vector<Tensor> inputs = tensors_of(arrays);
            double loss = 0;
            std::map<std::string, Tensor> gradients;
            {
              const nb::gil_scoped_release release;
              gradients = s.gradients(inputs, &loss);
            }
            return nb::make_tuple(loss, to_dict(gradients));
          },
          nb::sig("def gradients(self, *arrays: object) -> tuple[float, "
                  "dict[str, Tensor]]"),
          "Loss and gradients of the trained parameters, without an update.");
}

void bind_description(nb::class_<Session>& session) {
  session
      .def("input_info", &Session::input_info, nb::sig("def input_info(self) -> list[TensorInfo]"),
           "The model's inputs, then the label.")
      .def("output_info", &Session::output_info,
           nb::sig("def output_info(self) -> list[TensorInfo]"))
      .def_prop_ro("parameter_names", &Session::parameter_names)
      .def_prop_ro("adapted_names", &Session::adapted_names,
                   "The weights that have adapters (lora_rank), in the order of the file.")
      .def_prop_ro("left_out", &Session::left_out, nb::sig("def left_out(self) -> list[LeftOut]"),
                   "Float constants on the loss's path that are not trained unless `trainable` "
                   "names them, each with its reason.")
      .def_prop_ro("statistic_names", &Session::statistic_names,
                   "Running statistics that training normalisations keep up to date.")
      .def_prop_ro("warnings", &Session::warnings, "What can be trained but is hardly meant.")
      .def_prop_ro("optimizer_state_names", &Session::optimizer_state_names)
      .def_prop_ro("held_parameters", &Session::held_parameters, Unlocked(),
                   "With `zero`, the parameters of whose optimizer states this process has; else "
                   "None.");
}

void bind_states(nb::class_<Session>& session) {
  session
      .def(
          "weights",
          [](const Session& s) { return to_dict(unlocked_call([&] { return s.weights(); })); },
          nb::sig("def weights(self) -> dict[str, Tensor]"), "Copies of the trained parameters.")
      .def(
          "optimizer_state",
          [](const Session& s) {
            return to_dict(unlocked_call([&] { return s.optimizer_state(); }));
          },
          nb::sig("def optimizer_state(self) -> dict[str, Tensor]"), "Copies of the moments.")
      .def(
          "state",
          [](const Session& s, const std::string& name) {
            return unlocked_call([&] { return s.state(name); });
          },
          nb::arg("name"),
          "The present bytes of a parameter or moment, shared: they change with each step.")
      .def(
          "set_weights",
          [](Session& s, const nb::dict& w) {
            const Session::Inputs weights = named(w);
            const nb::gil_scoped_release release;
            s.set_weights(weights);
          },
          nb::arg("weights"), nb::sig("def set_weights(self, weights: dict[str, object]) -> None"),
          "Copies values in, after all were checked. Names left out keep their "
          "values.")
      .def(
          "set_optimizer_state",
          [](Session& s, const nb::dict& w) {
            const Session::Inputs moments = named(w);
            const nb::gil_scoped_release release;
            s.set_optimizer_state(moments);
          },
          nb::arg("moments"),
          nb::sig("def set_optimizer_state(self, moments: dict[str, object]) "
                  "-> None"))
      .def_prop_rw("step_count", &Session::step_count, &Session::set_step_count, Unlocked())
      .def_prop_rw("lr", &Session::lr, &Session::set_lr, Unlocked(),
                   "Reads the rate of the next step; sets the base rate, "
                   "before the schedule's factor.")
      .def("set_group", &Session::set_group, nb::arg("i"), nb::arg("optimizer"), Unlocked(),
           "From the next step on, of the i-th group, which has an optimizer of its own.")
      .def_prop_rw("loss_scale", &Session::loss_scale, &Session::set_loss_scale, Unlocked(),
                   "Of the next step; 1 unless the precision is \"fp16\".")
      .def_prop_rw("run_count", &Session::run_count, &Session::set_run_count, Unlocked(),
                   "With the seed, the key of every random draw.")
      .def("set_seed", &Session::set_seed, nb::arg("seed"), Unlocked())
      .def_prop_ro(
          "seed", [](const Session& s) { return s.options().seed; }, "Of dropout.");
}

void bind_files(nb::class_<Session>& session) {
  session
      .def("save_checkpoint",
           nb::overload_cast<const std::filesystem::path&, const std::string&>(
               &Session::save_checkpoint, nb::const_),
           nb::arg("path"), nb::arg("user") = "{}", Unlocked(),
           "Replaces a checkpoint only once the new one is whole. Raises "
           "IoError.")
      .def("load_checkpoint", &Session::load_checkpoint, nb::arg("path"), Unlocked(),
           "Verifies everything, then loads; returns `user`. Raises "
           "CheckpointError.")
      .def_prop_ro("batch_note", &Session::batch_note, Unlocked(),
                   "On a number of rows that the file fixes for all its inputs, with `loss`: that "
                   "batches of any size are taken all the same, or why not. Else empty.")
      .def_prop_ro(
          "checkpoint_note", &Session::checkpoint_note, Unlocked(),
          "What to know of the checkpoint that was loaded last: that options or the number "
          "of threads were others. Else empty.")
      .def(
          "save_artifact",
          [](const Session& s, const std::filesystem::path& path, const nb::args& batches) {
            std::vector<std::vector<Tensor>> tensors;
            for (nb::handle batch : batches) tensors.push_back(tensors_of(nb::tuple(batch)));
            const nb::gil_scoped_release release;
            s.save_artifact(path, tensors);
          },
          nb::sig("def save_artifact(self, path: str | os.PathLike, *batches: "
                  "collections.abc.Sequence[object]) -> None"),
          "Writes a file that libsteep.so trains and predicts from without the model and without "
          "ONNX, on a device for example. It has a step and a prediction for the shapes of each "
          "batch: arrays as step() takes them, or without the label for a prediction alone. "
          "Raises ModelError for what an artifact cannot hold, and IoError.")
      .def(
          "export_onnx",
          [](const Session& s, const std::filesystem::path& path, bool for_inference,
             bool external_data, size_t max_file_bytes, bool merge_adapters) {
            s.export_onnx(path, {.for_inference = for_inference,
                                 .external_data = external_data,
                                 .max_file_bytes = max_file_bytes,
                                 .merge_adapters = merge_adapters});
          },
          nb::arg("path"), nb::arg("for_inference") = false, nb::arg("external_data") = false,
          nb::arg("max_file_bytes") = size_t{INT_MAX}, nb::arg("merge_adapters") = true, Unlocked(),
          "Writes a copy of the model with the trained weights; if it is not to be trained on, as "
          "steep.model_for_inference() rewrites it, and without a loss inside of the model and "
          "the labels that it reads. With external_data, and for a model of more than "
          "max_file_bytes, tensors of 1 KiB and more go into the file PATH.data beside it. "
          "External data of the model that is not trained stays where it is when path is in its "
          "folder; else it is copied. Adapters are merged into weights of their own type, or with "
          "merge_adapters=False written beside them.")
      .def(
          "export_onnx_bytes",
          [](const Session& s, bool for_inference, bool merge_adapters) {
            const std::string bytes =
                unlocked_call([&] { return s.export_onnx_bytes(for_inference, merge_adapters); });
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("for_inference") = false, nb::arg("merge_adapters") = true);
}

void bind_plans(nb::class_<Session>& session) {
  session
      .def(
          "plan",
          [](Session& s, const nb::args& arrays) {
            const std::vector<Tensor> inputs = tensors_of(arrays);
            return unlocked_call([&] { return s.plan(inputs); });
          },
          nb::sig("def plan(self, *arrays: object) -> StepPlan"),
          "Compiles for these shapes, without running.")
      .def(
          "memory_report",
          [](Session& s, const nb::args& arrays) {
            const std::vector<Tensor> inputs = tensors_of(arrays);
            return unlocked_call([&] { return s.memory_report(inputs); });
          },
          nb::sig("def memory_report(self, *arrays: object) -> MemoryReport"),
          "What the step for these shapes keeps of forward and computes again, and what other "
          "memory limits would cost. Plans without running: up to two seconds for 1,000 nodes. "
          "Raises OutOfMemoryError where no plan fits the limit, ProviderError where the step is "
          "not planned as a whole.")
      .def_prop_ro("peak_bytes", &Session::peak_bytes, Unlocked(),
                   "The most memory that parameters, moments and steps took at one time so far.")
      .def(
          "dump_as",
          [](Session& s, const std::string& format, const nb::args& arrays) {
            const std::vector<Tensor> inputs = tensors_of(arrays);
            const DumpFormat how = dump_format(format);
            return unlocked_call([&] { return inputs.empty() ? s.dump() : s.dump(inputs, how); });
          },
          nb::sig("def dump_as(self, format: str, *arrays: object) -> str"),
          "The step's graph as text; with arrays, the compiled step as \"text\", its \"passes\" "
          "one "
          "by one, or \"html\".")
      .def("start_profile", &Session::start_profile, Unlocked())
      .def("write_profile", &Session::write_profile, nb::arg("path"), Unlocked(),
           "Writes a trace for ui.perfetto.dev.");
}

}  // namespace

void init_session(nb::module_& m) {
  init_options(m);
  m.def("option_rows", &option_rows,
        nb::sig("def option_rows() -> list[tuple[str, str, str, str, str]]"),
        "The table of the options of training (train/option_rows.h), a row each: the part of "
        "TrainingOptions that has it, or \"\"; its field there; its keyword; its flag; its help.");
  init_results(m);
  init_memory_report(m);
  m.def(
      "has_products",
      [](const std::string& dtype) { return host_device()->multiplies(dtype_from(dtype)); },
      nb::arg("dtype"),
      "Has this machine matrix products of a 16-bit float type? Otherwise they run in float32.");
  nb::class_<Session> session(m, "TrainingSession");
  bind_construction(session);
  bind_steps(session);
  bind_description(session);
  bind_states(session);
  bind_files(session);
  bind_plans(session);
}

}  // namespace steep::python
