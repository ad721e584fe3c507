// ModuleProgram: a torch.nn.Module's exported graph, ready for forward and backward as autograd
// asks for them.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "autodiff/gradient.h"
#include "autodiff/recognise.h"
#include "bindings.h"
#include "engine.h"
#include "model/import.h"
#include "ops/build.h"
#include "passes/precision.h"
#include "runtime/memory.h"
#include "runtime/threads.h"
#include "steep/error.h"
#include "steep/steep.h"

namespace steep::python {
namespace {

using Names = std::vector<std::string>;
/// Which outputs receive a gradient. An absent gradient is left out of the graph, since adding
/// zeros of a vocabulary's width costs as much as a layer: hence one Program per pattern. All
/// false: no backward part.
using Pattern = std::vector<bool>;

/// One forward run that may be asked for its backward. Keeps its inputs, because backward may come
/// with another pattern than was foreseen, or a second time.
struct ModuleRun {
  uint64_t program = 0;  // ModuleProgram::id_
  Pattern pattern;
  std::vector<Tensor> inputs;
  uint64_t seed = 0;
  std::unique_ptr<PendingRun> pending;
};

/// Calls from several threads take turns. Whoever waits for one does not hold the GIL, which the
/// other may need.
class ModuleProgram {
 public:
  ModuleProgram(const ModuleProgram&) = delete;
  ModuleProgram& operator=(const ModuleProgram&) = delete;
  /// `states` maps inputs of the graph that are parameters or buffers to the tensor that each
  /// stands for; two of them may stand for one (tied weights).
  ModuleProgram(const nb::bytes& model, const Names& inputs,
                const std::map<std::string, std::string>& states, const Names& trainable,
                const Names& input_gradients, bool training, const std::string& precision,
                bool narrow_results)
      : trainable_(trainable),
        input_gradients_(input_gradients),
        precision_(precision_from(precision)) {
    ImportOptions options;
    options.training = training;
    const auto* data = reinterpret_cast<const std::byte*>(model.c_str());
    {
      const nb::gil_scoped_release release;
      graph_ = import_model(std::span(data, model.size()), options).graph;
      make_states(states);
      recognise(graph_);
      check_inputs(inputs);
      find_differentiable();
    }
    for (Value v : graph_.inputs()) random_ = random_ || v.name() == kSeedInput;
    expected_ = first_guess();
    if (narrow_results) narrow_outputs();
  }

  void bind(const std::string& name, nb::handle array) {
    Tensor tensor = to_tensor(array, name.c_str());
    const nb::gil_scoped_release release;
    const std::lock_guard turn(turn_);
    for (auto& [pattern, program] : programs_) bind_in(program, name, tensor);
    bound_.insert_or_assign(name, std::move(tensor));
  }

  nb::tuple forward(const nb::list& arrays, bool gradients, uint64_t seed) {
    ModuleRun run;
    for (size_t i = 0; i < arrays.size(); ++i) run.inputs.push_back(to_tensor(arrays[i]));
    run.program = id_;
    run.seed = seed;
    ForwardResult result;
    {
      const nb::gil_scoped_release release;
      const std::lock_guard turn(turn_);
      run.pattern = pattern(gradients);
      result = start(run);
    }
    nb::list capsules;
    for (const Tensor& t : result.outputs) capsules.append(to_capsule(t));
    return nb::make_tuple(capsules, gradients ? nb::cast(std::move(run)) : nb::none(),
                          result.read_by_backward);
  }

  /// Gradients of `input_gradients`, then of `trainable`; None where nothing flows.
  nb::list backward(ModuleRun& run, const nb::list& gradients) {
    Pattern pattern;
    std::vector<Tensor> seeds;
    for (nb::handle g : gradients) {
      pattern.push_back(!g.is_none());
      if (!g.is_none()) seeds.push_back(to_tensor(g, "an output's gradient"));
    }
    if (run.program != id_) {
      throw DataError({.what = "Backward was called with a forward run of another program.",
                       .remedy = "Call backward of the program that ran forward."});
    }
    std::vector<Tensor> results;
    std::vector<bool> flows;
    {
      const nb::gil_scoped_release release;
      const std::lock_guard turn(turn_);
      expected_ = pattern;
      if (!run.pending || run.pattern != pattern) {
        run.pending.reset();
        run.pattern = pattern;
        start(run);
      }
      Compiled& c = compile(pattern);
      flows = c.flows;
      results = c.program.backward(std::move(run.pending), seeds);
    }
    nb::list out;
    size_t next = 0;
    for (bool flow : flows) {
      out.append(flow ? to_capsule(results[next++]) : nb::none());
    }
    return out;
  }

  /// Compiles for arrays like these, without running. Moments are not the engine's here.
  StepPlan plan(const nb::list& arrays, bool gradients) {
    std::vector<Type> types;
    for (nb::handle a : arrays) {
      const Tensor t = to_tensor(a);
      types.push_back({t.dtype(), to_shape(t.dims())});
    }
    const nb::gil_scoped_release release;
    const std::lock_guard turn(turn_);
    const PlanInfo info = compile(pattern(gradients)).program.plan(types);
    StepPlan plan{.arena_bytes = info.arena_bytes,
                  .parameter_bytes = bound_bytes(),
                  .output_bytes = info.output_bytes,
                  .constant_bytes = info.constant_bytes,
                  .kernels = info.kernels,
                  .specialise_ms = info.specialise_ms};
    plan.peak_bytes =
        plan.arena_bytes + plan.parameter_bytes + plan.output_bytes + plan.constant_bytes;
    return plan;
  }

  size_t peak_bytes() {
    const nb::gil_scoped_release release;
    const std::lock_guard turn(turn_);
    size_t bytes = bound_bytes();
    for (const auto& [pattern, compiled] : programs_) bytes += compiled.program.peak_bytes();
    return bytes;
  }

  std::string dump(const std::vector<std::pair<std::string, std::vector<int64_t>>>& types,
                   bool gradients) {
    std::vector<Type> concrete;
    for (const auto& [dtype, dims] : types) concrete.push_back({dtype_from(dtype), to_shape(dims)});
    const nb::gil_scoped_release release;
    const std::lock_guard turn(turn_);
    return compile(pattern(gradients)).program.dump(concrete);
  }

  bool random() const { return random_; }
  const std::vector<bool>& differentiable() const { return differentiable_; }
  size_t program_count() {
    const nb::gil_scoped_release release;
    const std::lock_guard turn(turn_);
    return programs_.size();
  }

 private:
  struct Compiled {
    Program program;
    std::vector<bool> flows;  // by wanted gradient: is there one?
  };

  Pattern pattern(bool gradients) const {
    return gradients ? expected_ : Pattern(expected_.size(), false);
  }

  size_t bound_bytes() const {
    size_t bytes = 0;
    for (const auto& [name, tensor] : bound_) bytes += tensor.nbytes();
    return bytes;
  }

  void make_states(const std::map<std::string, std::string>& states) {
    std::map<std::string, Value> canonical;
    for (const auto& [input, name] : states) {
      Value v = graph_.find(input);
      if (!v || v.role() != Role::input) continue;  // the exporter found no use for it
      auto [it, fresh] = canonical.emplace(name, v);
      graph_.make_state(v);
      if (fresh) {
        graph_.rename(v, name);
      } else {
        graph_.replace_uses(v, it->second);
        tied_.push_back(v.name());
      }
    }
  }

  void check_inputs(const Names& inputs) const {
    Names fed;
    for (Value v : graph_.inputs()) {
      if (v.name() != kSeedInput) fed.push_back(v.name());
    }
    if (fed == inputs) return;
    std::string text;
    for (const std::string& name : fed) text += " " + name;
    throw InternalError(
        {.what = "The exported graph has other inputs than the call.", .received = text});
  }

  /// Forward sweep from everything that wants a gradient, through operators that have one.
  void find_differentiable() {
    std::vector<bool> reached(graph_.value_count(), false);
    for (const Names* names : {&trainable_, &input_gradients_}) {
      for (const std::string& name : *names) {
        if (Value v = graph_.find(name)) reached[v.id()] = true;
      }
    }
    for (Node n : graph_.nodes()) {
      const OpDef* def = find_op(n.op());
      if (def != nullptr && def->stops_gradient) continue;
      bool any = false;
      for (int i = 0; i < n.input_count(); ++i)
        any = any || (n.input(i) && reached[n.input(i).id()]);
      for (int i = 0; any && i < n.output_count(); ++i) {
        if (Value y = n.output(i); y && is_float(y.dtype())) reached[y.id()] = true;
      }
    }
    for (const Output& o : graph_.outputs()) differentiable_.push_back(reached[o.value.id()]);
  }

  /// A model that returns one scalar returns its loss; otherwise a loss may follow any output.
  Pattern first_guess() const {
    Pattern scalars;
    int count = 0;
    for (size_t i = 0; i < differentiable_.size(); ++i) {
      const auto& shape = graph_.outputs()[i].value.type().shape;
      scalars.push_back(differentiable_[i] && shape.has_value() && shape->empty());
      count += scalars.back() ? 1 : 0;
    }
    return count == 1 ? scalars : differentiable_;
  }

  /// Products beside a loss leave as autocast would return them: nothing but the caller's eyes is
  /// to read them.
  void narrow_outputs() {
    if (std::none_of(expected_.begin(), expected_.end(), [](bool b) { return b; })) return;
    std::vector<Output> outputs = graph_.outputs();
    for (size_t i = 0; i < expected_.size(); ++i) {
      Output& output = outputs[i];
      const bool wide = output.value.dtype() == DType::f32;
      if (expected_[i] || !wide || !is_product(output.value)) continue;
      output.value = cast(output.value, precision_ == Precision::fp16 ? DType::f16 : DType::bf16);
    }
    graph_.set_outputs(std::move(outputs));
  }

  void bind_in(Compiled& compiled, const std::string& name, const Tensor& tensor) {
    for (Value s : compiled.program.graph().states()) {
      if (s.name() == name) return compiled.program.bind_state(name, tensor);
    }
  }

  Compiled& compile(const Pattern& pattern) {
    if (auto it = programs_.find(pattern); it != programs_.end()) return it->second;
    Graph g = graph_;
    std::vector<bool> flows;
    std::vector<Value> wrt;
    for (const Names* names : {&input_gradients_, &trainable_}) {
      for (const std::string& name : *names) {
        Value v = g.find(name);
        flows.push_back(static_cast<bool>(v));
        if (v) wrt.push_back(v);
      }
    }
    std::vector<Value> outputs;
    std::vector<Value> seeds;
    for (size_t i = 0; i < pattern.size(); ++i) {
      if (!pattern[i]) continue;
      const Output output = g.outputs()[i];
      outputs.push_back(output.value);
      seeds.push_back(g.add_gradient_input("gradient of " + output.name, output.value));
    }
    if (!outputs.empty()) {
      const std::vector<Value> gradients = add_gradients(g, outputs, seeds, wrt);
      size_t next = 0;
      for (auto&& flow : flows) {
        if (!flow) continue;
        Value gradient = gradients[next];
        flow = static_cast<bool>(gradient);
        if (gradient) g.add_output("gradient of " + wrt[next].name(), gradient, Phase::backward);
        ++next;
      }
    }
    Compiled compiled{Program(std::move(g), {.precision = precision_}), std::move(flows)};
    for (const auto& [name, tensor] : bound_) bind_in(compiled, name, tensor);
    return programs_.emplace(pattern, std::move(compiled)).first->second;
  }

  /// The run that waits for backward goes to `run`.
  ForwardResult start(ModuleRun& run) {
    Program& program = compile(run.pattern).program;
    program.set_seed(run.seed);
    program.set_run_count(0);  // the seed differs from run to run
    ForwardResult result = program.forward(run.inputs);
    run.pending = std::move(result.pending);
    return result;
  }

  static uint64_t next_id() {
    static std::atomic<uint64_t> last = 0;
    return ++last;
  }

  const uint64_t id_ = next_id();
  Turn turn_;  // of all but what the constructor settles
  Graph graph_;
  Names trainable_;
  Names input_gradients_;
  Precision precision_;
  Names tied_;
  std::vector<bool> differentiable_;
  bool random_ = false;
  Pattern expected_;
  std::map<std::string, Tensor> bound_;
  std::map<Pattern, Compiled> programs_;
};

}  // namespace

void init_program(nb::module_& m) {
  m.def("keep_freed_memory", &keep_freed_memory,
        "Makes malloc keep what is freed for the next step, instead of returning it to the "
        "system. Concerns the whole process; False where malloc or the environment "
        "(STEEP_MALLOC=system) does not allow it.");
  m.def("return_freed_memory", &return_freed_memory,
        "Returns to the system what malloc keeps of freed memory at this moment.");
  nb::class_<ModuleRun>(m, "ModuleRun", "A forward run that may be asked for its backward.");
  nb::class_<ModuleProgram>(m, "ModuleProgram",
                            "A module's exported graph, ready for forward and backward. Parameters "
                            "and buffers are states, bound by "
                            "pointer; nothing is copied.")
      .def(nb::init<nb::bytes, const Names&, const std::map<std::string, std::string>&,
                    const Names&, const Names&, bool, const std::string&, bool>(),
           nb::arg("model"), nb::arg("inputs"), nb::arg("states"), nb::arg("trainable"),
           nb::arg("input_gradients"), nb::arg("training"), nb::arg("precision") = "fp32",
           nb::arg("narrow_results") = false,
           "model: serialised ONNX whose parameters are inputs. inputs: names that forward() is "
           "fed, in order. "
           "states: graph input -> name of the parameter or buffer. trainable, input_gradients: "
           "names whose "
           "gradients backward() returns. training: keep dropout. precision: \"fp32\", "
           "\"bf16\" or \"fp16\". narrow_results: return products beside a loss in that type. "
           "Raises ModelError.")
      .def("bind", &ModuleProgram::bind, nb::arg("name"), nb::arg("array"),
           "Binds a state to the bytes of an array, from now on shared. Raises ShapeError.")
      .def("forward", &ModuleProgram::forward, nb::arg("arrays"), nb::arg("gradients"),
           nb::arg("seed") = 0,
           nb::sig("def forward(self, arrays: list[object], gradients: bool, seed: int = 0) -> "
                   "tuple[list[object], ModuleRun | None, list[bool]]"),
           "Runs the graph. Returns DLPack capsules of the outputs, the run when `gradients`, and, "
           "by output, whether backward will read it, so that it must not change before.")
      .def(
          "backward", &ModuleProgram::backward, nb::arg("run"), nb::arg("gradients"),
          nb::sig(
              "def backward(self, run: ModuleRun, gradients: list[object]) -> list[object | None]"),
          "One array or None per output. Returns DLPack capsules, None where no gradient flows, "
          "for "
          "`input_gradients` and then `trainable`.")
      .def("dump", &ModuleProgram::dump, nb::arg("types"), nb::arg("gradients"),
           "Text of graph and plan for inputs of these (dtype, shape) pairs.")
      .def("plan", &ModuleProgram::plan, nb::arg("arrays"), nb::arg("gradients"),
           nb::sig("def plan(self, arrays: list[object], gradients: bool) -> StepPlan"),
           "Compiles for arrays like these, without running. Outputs include gradients.")
      .def_prop_ro("peak_bytes", &ModuleProgram::peak_bytes,
                   "The most memory that bound tensors and runs took at one time so far.")
      .def_prop_ro("random", &ModuleProgram::random, "Does the graph draw random numbers?")
      .def_prop_ro("differentiable", &ModuleProgram::differentiable, "Per output.")
      .def_prop_ro("program_count", &ModuleProgram::program_count,
                   "Programs compiled so far, one per pattern of outputs that had gradients.");
}

}  // namespace steep::python
