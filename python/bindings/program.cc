// ModuleProgram: a captured graph with the forward and backward functions that autograd calls.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings.h"
#include "model/import/import.h"
#include "runtime/memory.h"
#include "sessions/gradient_program.h"
#include "sessions/step_plan.h"
#include "steep/error.h"
#include "steep/steep.h"

namespace steep::python {
namespace {

using Names = std::vector<std::string>;

std::vector<Type> types_of(const nb::list& arrays) {
  std::vector<Type> types;
  for (nb::handle a : arrays) {
    const Tensor t = to_tensor(a);
    types.push_back({t.dtype(), to_shape(t.dims())});
  }
  return types;
}

/// Per input: dtype and extents.
using NamedTypes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

std::vector<Type> types_from(const NamedTypes& types) {
  std::vector<Type> concrete;
  for (const auto& [dtype, dims] : types) concrete.push_back({dtype_from(dtype), to_shape(dims)});
  return concrete;
}

/// GradientProgram with arrays. Calls that may wait release the GIL, because the thread that they
/// wait for may need it.
class ModuleProgram {
 public:
  ModuleProgram(const nb::bytes& model, const Names& inputs, GradientProgramOptions options)
      : program_(import(model, std::move(options))) {
    const Names names = program_->input_names();
    if (names == inputs) return;
    std::string text;
    for (const std::string& name : names) text += " " + name;
    throw InternalError(
        {.what = "The captured graph has other inputs than the call.", .received = text});
  }

  nb::tuple forward(const nb::list& arrays, bool gradients, uint64_t seed) {
    GradientRun run;
    for (nb::handle a : arrays) run.inputs.push_back(to_tensor(a));
    run.seed = seed;
    ForwardResult result;
    {
      const nb::gil_scoped_release release;
      result = program_->forward(run, gradients);
    }
    nb::list capsules;
    for (const Tensor& t : result.outputs) capsules.append(to_capsule(t));
    return nb::make_tuple(capsules, gradients ? nb::cast(std::move(run)) : nb::none(),
                          result.read_by_backward);
  }

  nb::list backward(GradientRun& run, const nb::list& gradients, const nb::dict& moves,
                    bool changed, bool is_kept) {
    std::vector<Tensor> seeds;
    for (nb::handle g : gradients) {
      seeds.push_back(g.is_none() ? Tensor() : to_tensor(g, "an output's gradient"));
    }
    for (auto [index, array] : moves) {
      run.inputs.at(nb::cast<size_t>(index)) = to_tensor(array, "an input");
      run.moved = true;
    }
    run.changed = changed;
    run.is_kept = is_kept;
    std::vector<Tensor> results;
    {
      const nb::gil_scoped_release release;
      results = program_->backward(run, seeds);
    }
    nb::list out;
    for (const Tensor& t : results) out.append(t.defined() ? to_capsule(t) : nb::none());
    return out;
  }

  StepPlan plan(const nb::list& arrays, bool gradients) {
    const std::vector<Type> types = types_of(arrays);
    const nb::gil_scoped_release release;
    return step_plan(program_->plan(types, gradients));
  }

  std::string dump(const NamedTypes& types, bool gradients, const std::string& format) {
    const std::vector<Type> concrete = types_from(types);
    const DumpFormat how = dump_format(format);
    const nb::gil_scoped_release release;
    return program_->dump(concrete, gradients, how);
  }

  nb::bytes compiled_model(const NamedTypes& types, bool gradients) {
    const std::vector<Type> concrete = types_from(types);
    std::string bytes;
    {
      const nb::gil_scoped_release release;
      bytes = program_->compiled_model(concrete, gradients);
    }
    return nb::bytes(bytes.data(), bytes.size());
  }

  StepPlan plan_for(const NamedTypes& types, bool gradients) {
    const std::vector<Type> concrete = types_from(types);
    const nb::gil_scoped_release release;
    return step_plan(program_->plan(concrete, gradients));
  }

  MemoryReport memory_report_for(const NamedTypes& types, bool gradients) {
    const std::vector<Type> concrete = types_from(types);
    const nb::gil_scoped_release release;
    return program_->memory_report(concrete, gradients);
  }

  void start_profile() {
    const nb::gil_scoped_release release;
    program_->start_profile();
  }
  std::string end_profile() {
    const nb::gil_scoped_release release;
    return program_->end_profile();
  }

  size_t peak_bytes() {
    const nb::gil_scoped_release release;
    return program_->peak_bytes();
  }
  size_t program_count() {
    const nb::gil_scoped_release release;
    return program_->program_count();
  }
  bool random() const { return program_->random(); }
  const std::vector<bool>& differentiable() const { return program_->differentiable(); }

 private:
  static std::unique_ptr<GradientProgram> import(const nb::bytes& model,
                                                 GradientProgramOptions options) {
    ImportOptions how;
    how.training = true;  // a dropout that is off is not in the graph
    const auto* data = reinterpret_cast<const std::byte*>(model.c_str());
    const nb::gil_scoped_release release;
    return std::make_unique<GradientProgram>(import_model(std::span(data, model.size()), how).graph,
                                             std::move(options));
  }

  std::unique_ptr<GradientProgram> program_;
};

void init_run(nb::module_& m) {
  nb::class_<GradientRun>(m, "ModuleRun", "A forward run that may be asked for its backward.")
      .def(
          "copies",
          [](const GradientRun& run) {
            nb::list capsules;
            for (const Tensor& t : run.copies) capsules.append(to_capsule(t));
            return capsules;
          },
          nb::sig("def copies(self) -> list[object]"),
          "DLPack capsules of the inputs as forward read them, in order; empty where no copies "
          "were made, since the run's backward was foreseen.")
      .def("shows_writes", &shows_writes,
           "Do the inputs of a run without copies show that somebody wrote to them since forward? "
           "Of large arrays a sample of the elements does.");
}

void init_module_program(nb::module_& m) {
  nb::class_<ModuleProgram>(m, "ModuleProgram",
                            "A captured graph, ready for forward and backward. All that it reads, "
                            "parameters too, are inputs.")
      .def(
          "__init__",
          [](ModuleProgram* self, const nb::bytes& model, const Names& inputs,
             Names input_gradients, const std::string& precision,
             const std::vector<ProviderChoice>& providers, Names may_change,
             std::vector<bool> results_may_change, const Names& disabled_passes,
             const std::string& memory_limit) {
            new (self)
                ModuleProgram(model, inputs,
                              {.input_gradients = std::move(input_gradients),
                               .may_change = std::move(may_change),
                               .results_may_change = std::move(results_may_change),
                               .precision = precision_from(precision),
                               .memory_limit = memory_limit_from(memory_limit),
                               .disabled_passes = {disabled_passes.begin(), disabled_passes.end()},
                               .devices = Devices::of(providers)});
          },
          nb::arg("model"), nb::arg("inputs"), nb::arg("input_gradients"),
          nb::arg("precision") = "fp32", nb::arg("providers") = std::vector<ProviderChoice>(),
          nb::arg("may_change") = Names(), nb::arg("results_may_change") = std::vector<bool>(),
          nb::arg("disabled_passes") = Names(), nb::arg("memory_limit") = "",
          nb::sig("def __init__(self, model: bytes, inputs: collections.abc.Sequence[str], "
                  "input_gradients: collections.abc.Sequence[str], precision: str = 'fp32', "
                  "providers: collections.abc.Sequence[ProviderChoice] = (), "
                  "may_change: collections.abc.Sequence[str] = (), "
                  "results_may_change: collections.abc.Sequence[bool] = (), "
                  "disabled_passes: collections.abc.Sequence[str] = (), memory_limit: str = '') -> "
                  "None"),
          "model: serialised ONNX. inputs: names that forward() is fed, in order. "
          "input_gradients: names whose gradients backward() returns. precision: \"fp32\", "
          "\"bf16\" or \"fp16\". may_change: names of inputs that may be written to between "
          "forward and backward, which then reads copies. results_may_change: by output, may it "
          "be written to likewise? One without a gradient always may. "
          "disabled_passes: rewrites that are left out. memory_limit: of a run, as in 2GiB. Raises "
          "ModelError.")
      .def("forward", &ModuleProgram::forward, nb::arg("arrays"), nb::arg("gradients"),
           nb::arg("seed") = 0,
           nb::sig("def forward(self, arrays: list[object], gradients: bool, seed: int = 0) -> "
                   "tuple[list[object], ModuleRun | None, list[bool]]"),
           "Runs the graph. Returns DLPack capsules of the outputs, the run when `gradients`, and, "
           "by output, whether backward will read it, so that it must not change before.")
      .def(
          "backward", &ModuleProgram::backward, nb::arg("run"), nb::arg("gradients"),
          nb::arg("moved") = nb::dict(), nb::arg("changed") = false, nb::arg("is_kept") = false,
          nb::sig("def backward(self, run: ModuleRun, gradients: list[object], "
                  "moved: dict[int, object] = {}, changed: bool = False, is_kept: bool = False) -> "
                  "list[object | None]"),
          "One array or None per output; inputs whose memory has moved since forward(), by "
          "position, which hold the same values; whether one of `may_change` was written to; "
          "whether "
          "another backward of the run may follow. "
          "Returns DLPack capsules, None where no gradient flows, for `input_gradients`. Raises "
          "DataError where it would need what was written over.")
      .def("dump", &ModuleProgram::dump, nb::arg("types"), nb::arg("gradients"),
           nb::arg("format") = "text",
           "Graph and plan for inputs of these (dtype, shape) pairs, as \"text\"; \"passes\", one "
           "by "
           "one; or \"html\".")
      .def("compiled_model", &ModuleProgram::compiled_model, nb::arg("types"), nb::arg("gradients"),
           "Serialised ONNX of the compiled graph, to look at: Steep's own operators are in the "
           "domain \"steep\", large constants are inputs. No runtime can run it.")
      .def("plan_for", &ModuleProgram::plan_for, nb::arg("types"), nb::arg("gradients"),
           "As plan(), for inputs of these (dtype, shape) pairs.")
      .def("memory_report_for", &ModuleProgram::memory_report_for, nb::arg("types"),
           nb::arg("gradients"),
           "What the plan for inputs of these (dtype, shape) pairs keeps and computes again.")
      .def("plan", &ModuleProgram::plan, nb::arg("arrays"), nb::arg("gradients"),
           nb::sig("def plan(self, arrays: list[object], gradients: bool) -> StepPlan"),
           "Compiles for arrays like these, without running. Outputs include gradients.")
      .def("start_profile", &ModuleProgram::start_profile, "Records all runs, from now on.")
      .def("end_profile", &ModuleProgram::end_profile,
           "Ends it. Returns the events as JSON, for ui.perfetto.dev.")
      .def_prop_ro("peak_bytes", &ModuleProgram::peak_bytes,
                   "The most memory that runs took at one time so far.")
      .def_prop_ro("random", &ModuleProgram::random, "Does the graph draw random numbers?")
      .def_prop_ro("differentiable", &ModuleProgram::differentiable, "Per output.")
      .def_prop_ro("program_count", &ModuleProgram::program_count,
                   "Programs compiled so far, one per pattern of outputs that had gradients.");
}

}  // namespace

void init_program(nb::module_& m) {
  m.def("keep_freed_memory", &keep_freed_memory,
        "Makes malloc keep what is freed for the next step, instead of returning it to the "
        "system. Concerns the whole process; False where malloc or the environment "
        "(STEEP_MALLOC=system) does not allow it.");
  m.def("return_freed_memory", &return_freed_memory,
        "Returns to the system what malloc keeps of freed memory at this moment.");
  init_run(m);
  init_module_program(m);
}

}  // namespace steep::python
