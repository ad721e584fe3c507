// gradient_model(): imports, differentiates with symbolic shapes, and writes an ONNX model.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <unordered_map>
#include <unordered_set>

#include "autodiff/gradient.h"
#include "model/export/export.h"
#include "model/import/import.h"
#include "ops/build.h"
#include "runtime/budget.h"
#include "runtime/memory.h"
#include "steep/gradient.h"

namespace steep {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& name,
                         const std::vector<std::string>& names) {
  throw ModelError(
      {.what = what,
       .node = name,
       .expected = names.empty() ? "none is there" : fmt::format("{}", fmt::join(names, ", ")),
       .received = name});
}

/// Makes the differentiated outputs the only outputs of the graph.
void keep_outputs(Graph& g, const std::vector<std::string>& names) {
  std::vector<Output> floats;
  std::vector<std::string> candidates;
  for (const Output& o : g.outputs()) {
    if (!is_float(o.value.dtype())) continue;
    floats.push_back(o);
    candidates.push_back(o.name);
  }
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < candidates.size(); ++i) places.emplace(candidates[i], i);
  std::vector<Output> choice;
  for (const std::string& name : names) {
    const auto it = places.find(name);
    if (it == places.end()) refuse("The model has no such float output.", name, candidates);
    choice.push_back(floats[it->second]);
  }
  if (names.empty()) choice = floats;
  if (choice.empty()) refuse("The model has no float output to differentiate.", "", candidates);
  g.set_outputs(std::move(choice));
}

std::vector<Value> find_sources(Graph& g, const GradientOptions& options,
                                const std::vector<std::string>& initializers) {
  if (options.wrt.empty()) {
    throw ModelError({.what = "There is nothing to differentiate.",
                      .expected = "names of inputs or initializers in `wrt`"});
  }
  std::vector<Value> sources;
  for (const std::string& name : options.wrt) {
    const Value v = g.find(name);
    const bool fits = v && is_float(v.dtype()) && (v.role() == Role::input || constant(v));
    if (v && !fits && v.type().kind == Kind::tensor && !is_float(v.dtype())) {
      throw ModelError({.what = "Only floats have gradients.",
                        .node = name,
                        .expected = "a float input or initializer in `wrt`",
                        .received = to_string(v.type())});
    }
    if (!fits) {
      std::vector<std::string> candidates;
      for (Value input : g.inputs()) candidates.push_back(input.name());
      candidates.insert(candidates.end(), initializers.begin(), initializers.end());
      refuse("The model has no such float input or initializer.", name, candidates);
    }
    sources.push_back(v);
  }
  return sources;
}

/// The names of inputs and outputs.
class Names {
 public:
  explicit Names(const Graph& g) {
    for (Value v : g.inputs()) names_.insert(v.name());
    for (const Output& o : g.outputs()) names_.insert(o.name);
  }

  /// `name`, or `name_2`, … if an input or output has that name already.
  std::string unused(const std::string& name) {
    std::string text = name;
    for (int i = 2; !names_.insert(text).second; ++i) text = fmt::format("{}_{}", name, i);
    return text;
  }

 private:
  std::unordered_set<std::string> names_;
};

bool is_scalar(Value v) { return v.type().shape && v.type().shape->empty(); }

std::string differentiate(ImportedModel model, const GradientOptions& options) try {
  Graph& g = model.graph;
  for (const std::string& name : options.outputs) model.require(name);
  if (options.outputs.empty() && !model.left_out.empty())
    model.require(model.left_out.begin()->first);
  keep_outputs(g, options.outputs);
  const std::vector<Value> sources = find_sources(g, options, model.initializers);
  Names names(g);
  std::vector<Value> outputs;
  std::vector<Value> seeds;
  for (const Output& o : std::vector<Output>(g.outputs())) {
    outputs.push_back(o.value);
    const bool one = is_scalar(o.value) && !options.scalar_gradients;
    seeds.push_back(one ? Value() : g.add_input(names.unused("grad_" + o.name), o.value.type()));
  }
  const std::vector<Value> gradients = add_gradients(g, outputs, seeds, sources, Phase::forward);
  for (size_t i = 0; i < sources.size(); ++i) {
    const Value gradient = gradients[i] ? gradients[i] : zeros_like(sources[i]);
    g.add_output(names.unused("grad_" + options.wrt[i]), gradient);
  }
  expand_steep_ops(g);
  g.prune();
  return export_model(g, "gradients");
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace

std::string gradient_model(const std::filesystem::path& model, const GradientOptions& options) {
  const Budget budget(options.limits);
  return differentiate(import_model(model, {.limits = options.limits,
                                            .training = false,
                                            .leave_out = true,
                                            .named = {options.wrt.begin(), options.wrt.end()}}),
                       options);
}

std::string gradient_model(std::span<const std::byte> model, const GradientOptions& options,
                           const std::filesystem::path& folder) {
  const Budget budget(options.limits);
  return differentiate(import_model(model,
                                    {.limits = options.limits,
                                     .training = false,
                                     .leave_out = true,
                                     .named = {options.wrt.begin(), options.wrt.end()}},
                                    folder),
                       options);
}

}  // namespace steep
