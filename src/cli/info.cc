// steep info: the contents of a model. steep diff: the differences between two models.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "data/convert.h"
#include "ir/seed.h"
#include "model/import/import.h"
#include "runtime/budget.h"
#include "runtime/counted.h"

namespace steep::cli {
namespace {

struct ModelsChoice {
  std::string a, b;
  std::vector<std::string> ops;
  Limits limits;
};

ImportedModel imported(const std::string& path, const Limits& limits) {
  return import_model(std::filesystem::path(path), {.limits = limits, .leave_out = true});
}

std::map<std::string, int64_t> count_ops(const Graph& graph) {
  std::map<std::string, int64_t> counts;
  for (const Node n : graph.nodes()) ++counts[n.op()];
  return counts;
}

std::map<std::string, Tensor> weights_of(const ImportedModel& model) {
  std::map<std::string, Tensor> weights;
  for (const std::string& name : model.initializers) {
    const Value v = model.graph.find(name);
    if (v && v.tensor() != nullptr) weights[name] = *v.tensor();
  }
  return weights;
}

/// The inputs that the file has.
std::vector<Value> fed_inputs(const ImportedModel& model) {
  std::vector<Value> inputs;
  for (const Value v : model.graph.inputs()) {
    if (!is_seed(v)) inputs.push_back(v);
  }
  return inputs;
}

/// The types of inputs or outputs, by name.
std::map<std::string, std::string> inputs_of(const ImportedModel& model) {
  std::map<std::string, std::string> types;
  for (const Value v : fed_inputs(model)) types[v.name()] = to_string(v.type());
  return types;
}
std::map<std::string, std::string> outputs_of(const ImportedModel& model) {
  std::map<std::string, std::string> types;
  for (const Output& o : model.graph.outputs()) types[o.name] = to_string(o.value.type());
  return types;
}

int info(const ModelsChoice& choice) {
  const Budget budget(choice.limits);
  load_ops(choice.ops, choice.limits);
  const ImportedModel model = imported(choice.a, choice.limits);
  fmt::print("opset {}", model.opset);
  if (!model.metadata.producer.empty()) fmt::print(", made by {}", model.metadata.producer);
  fmt::print("\n");
  for (const Value v : fed_inputs(model)) {
    fmt::print("input   {}  {}\n", v.name(), to_string(v.type()));
  }
  for (const Output& o : model.graph.outputs()) {
    fmt::print("output  {}  {}\n", o.name, to_string(o.value.type()));
  }
  for (const auto& [name, why] : model.left_out) {
    fmt::print("output  {}  cannot be computed: {}\n", name, why.what);
  }
  int64_t elements = 0;
  size_t bytes = 0;
  const std::map<std::string, Tensor> weights = weights_of(model);
  for (const auto& [name, tensor] : weights) {
    elements += tensor.size();
    bytes += tensor.nbytes();
  }
  fmt::print("{} of {}, {:.1f} MiB\n", counted(weights.size(), "initializer"),
             counted(elements, "element"), static_cast<double>(bytes) / (1 << 20));
  std::vector<std::pair<int64_t, std::string>> ops;
  for (const auto& [op, count] : count_ops(model.graph)) ops.emplace_back(-count, op);
  std::sort(ops.begin(), ops.end());
  fmt::print("{}\n", counted(model.graph.node_count(), "node"));
  for (const auto& [count, op] : ops) fmt::print("  {:6}  {}\n", -count, op);
  return kDone;
}

/// Prints the names that only one side has, and calls changed(name, a, b) for names that both have.
template <typename T, typename Changed>
bool compare(const char* kind, const std::map<std::string, T>& a, const std::map<std::string, T>& b,
             Changed&& changed) {
  bool differ = false;
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    if (other == b.end()) fmt::print("- {} {}\n", kind, name);
    differ = (other == b.end() || changed(name, value, other->second)) || differ;
  }
  for (const auto& [name, value] : b) {
    if (a.count(name) != 0) continue;
    fmt::print("+ {} {}\n", kind, name);
    differ = true;
  }
  return differ;
}

/// Prints how two values of one name differ. Returns false if they do not.
bool differ(const std::string& name, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.dims() != b.dims()) {
    fmt::print("! initializer {}  {}{} and {}{}\n", name, name_of(a.dtype()), to_string(a.dims()),
               name_of(b.dtype()), to_string(b.dims()));
    return true;
  }
  if (a.nbytes() == 0 || std::memcmp(a.data(), b.data(), a.nbytes()) == 0) return false;
  std::string how;
  if (converts(a.dtype(), DType::f64)) {
    const Tensor x = convert(a, DType::f64, name), y = convert(b, DType::f64, name);
    double most = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < x.size(); ++i) {
      const double p = x.data<double>()[i], q = y.data<double>()[i];
      if (p == q || (std::isnan(p) && std::isnan(q))) continue;
      ++count;
      if (!std::isnan(most) && !(std::fabs(p - q) <= most)) most = std::fabs(p - q);
    }
    how = count == 0 ? " in the bits of zeros or NaN alone"
                     : fmt::format(" by {:.3g} at most, in {} of {}", most, count,
                                   counted(x.size(), "element"));
  }
  fmt::print("! initializer {}  differs{}\n", name, how);
  return true;
}

int diff(const ModelsChoice& choice) {
  const Budget budget(choice.limits);
  load_ops(choice.ops, choice.limits);
  const ImportedModel a = imported(choice.a, choice.limits), b = imported(choice.b, choice.limits);
  const auto texts = [](const char* kind) {
    return [kind](const std::string& name, const auto& x, const auto& y) {
      if (x != y) fmt::print("! {} {}  {} and {}\n", kind, name, x, y);
      return x != y;
    };
  };
  bool any = compare("input", inputs_of(a), inputs_of(b), texts("input"));
  any = compare("output", outputs_of(a), outputs_of(b), texts("output")) || any;
  any = compare("operator", count_ops(a.graph), count_ops(b.graph), texts("nodes of")) || any;
  any = compare("initializer", weights_of(a), weights_of(b), differ) || any;
  if (!any) fmt::print("no difference in inputs, outputs, counts of operators and initializers\n");
  return any ? kObstacles : kDone;
}

}  // namespace

Command add_info(CLI::App& parent) {
  auto choice = std::make_shared<ModelsChoice>();
  CLI::App& app = *parent.add_subcommand("info", "Print what is in a model");
  app.add_option("model", choice->a, "The .onnx file")->required();
  add_ops_option(app, choice->ops);
  add_limit_options(app, choice->limits);
  app.footer(
      "Operators are those that Steep runs: functions inlined, older forms upgraded.\n"
      "Example:\n"
      "  steep info model.onnx");
  return [choice] { return info(*choice); };
}

Command add_diff(CLI::App& parent) {
  auto choice = std::make_shared<ModelsChoice>();
  CLI::App& app = *parent.add_subcommand("diff", "Print in what two models differ");
  app.add_option("model", choice->a, "The .onnx file")->required();
  app.add_option("other", choice->b, "The other .onnx file")->required();
  add_ops_option(app, choice->ops);
  add_limit_options(app, choice->limits);
  app.footer(
      "Compares inputs, outputs, how many nodes there are of each operator, and initializers: -\n"
      "for what the first has alone, + for the second, ! for what is not the same.\n"
      "Exit code: 0 without a difference, 1 with one.\n"
      "Example:\n"
      "  steep diff model.onnx trained.onnx");
  return [choice] { return diff(*choice); };
}

}  // namespace steep::cli
