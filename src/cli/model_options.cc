#include "cli/model_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "cli/class_weights.h"
#include "cli/command_line.h"
#include "cli/option_flags.h"
#include "passes/pipeline.h"
#include "plan/memory_limit.h"
#include "runtime/parse_bytes.h"
#include "steep/error.h"
#include "steep/ops.h"
#include "train/loss.h"
#include "train/optimizer.h"
#include "train/own_loss.h"

namespace steep::cli {
namespace {

/// Loads the plug-in if the text is a path. A name without a slash or an ending may be a loaded
/// provider.
ProviderChoice provider_of(const std::string& text) {
  ProviderChoice choice;
  size_t at = text.find(',');
  choice.name = text.substr(0, at);
  while (at != std::string::npos) {
    const size_t next = text.find(',', at + 1);
    choice.options.insert(split_pair(text.substr(at + 1, next - at - 1), "--provider"));
    at = next;
  }
  const bool library = choice.name.find('/') != std::string::npos || choice.name.ends_with(".so");
  if (library) choice.name = register_provider(choice.name);
  return choice;
}

/// Requires digits, not all of them 0, before the unit that AsSizeValue reads.
CLI::Validator positive_size() {
  const auto refuse = [](const std::string& word) {
    const size_t unit = word.find_first_not_of("0123456789");
    const bool positive = unit > 0 && word.find_first_of("123456789") < unit;
    return positive ? std::string()
                    : fmt::format("expected a number of bytes, as in 8G, received '{}'", word);
  };
  return {refuse, "BYTES"};
}

}  // namespace

std::pair<std::string, std::string> split_pair(const std::string& text, const char* option) {
  const size_t at = text.find('=');
  if (at == std::string::npos || at == 0) {
    throw DataError(ErrorParts{.what = fmt::format("{} cannot be read.", option),
                               .expected = "name=value",
                               .received = text});
  }
  return {text.substr(0, at), text.substr(at + 1)};
}

void add_limit_options(CLI::App& app, Limits& limits) {
  app.add_option("--max-bytes", limits.max_bytes,
                 "Greatest memory for the model, the step and the data, each, as in 8G\n"
                 "(default: STEEP_MAX_BYTES, or three quarters of the memory of the process)")
      ->transform(CLI::AsSizeValue(false))
      ->transform(positive_size());  // runs first: AsSizeValue would read -1 as the greatest size
  app.add_option("--max-nodes", limits.max_nodes,
                 "Greatest number of nodes of the model and of each graph made from it")
      ->capture_default_str()
      ->transform(whole(1));
}

void add_model_options(CLI::App& app, ModelChoice& choice) {
  app.add_option("model", choice.path, "The .onnx file")->required();
  add_ops_option(app, choice.ops);
  visit_model_options([&](const OptionRow& row, auto member) {
    auto& field = choice.options.*member;
    if constexpr (std::is_same_v<decltype(field), std::optional<int64_t>&>) {
      app.add_option(std::string(row.flag), choice.ignore_index, std::string(row.help))
          ->expected(1)
          ->transform(
              whole(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
    } else if (row.key == "class_weights") {
      add_class_weights_option(app, row, choice.class_weights);
    } else {
      add_flag_of(app, row, field);
    }
  });
  add_limit_options(app, choice.options.limits);
}

void add_provider_option(CLI::App& app, std::vector<std::string>& providers) {
  app.add_option("--provider", providers,
                 "Where to run, before the CPU: the library of a plug-in, with its options behind\n"
                 "commas, as in ./libmirror.so,memory_mb=512; may be given several times")
      ->type_name("LIBRARY[,OPTION=VALUE]")
      ->allow_extra_args(false)
      ->take_all();
}

void add_pass_option(CLI::App& app, std::vector<std::string>& disabled) {
  const std::vector<std::string> names = pass_names();
  visit_step_options([&](const OptionRow& row, auto) {
    if (row.key != kDisabledPasses) return;
    add_flag_of(app, row, disabled)->allow_extra_args(false)->take_all()->check(one_of(names));
  });
}

std::vector<ProviderChoice> providers_of(const std::vector<std::string>& texts) {
  std::vector<ProviderChoice> choices;
  for (const std::string& text : texts) choices.push_back(provider_of(text));
  return choices;
}

void add_ops_option(CLI::App& app, std::vector<std::string>& files) {
  app.add_option("--ops", files, "Custom operators and optimizers: an .onnx file with functions")
      ->allow_extra_args(false)
      ->take_all();
}

void load_ops(const std::vector<std::string>& files, const Limits& limits) {
  for (const std::string& file : files) {
    try {
      register_ops(file, limits);
    } catch (const ModelError& error) {  // find out which of the files is wrong
      ErrorParts parts = error.parts();
      if (parts.node.empty()) parts.node = file;
      throw ModelError(std::move(parts));
    }
  }
}

void add_optimizer_option(CLI::App& app, ModelChoice& choice, const char* what) {
  const std::string kinds = fmt::format("{}", fmt::join(optimizer_kinds(), ", "));
  app.add_option("--optimizer", choice.options.optimizer.kind,
                 fmt::format("{}:\n{};\nor one of --ops", what, kinds))
      ->capture_default_str();
  app.add_option("--attribute", choice.attributes,
                 "name=number: sets an attribute of an optimizer of --ops")
      ->allow_extra_args(false)
      ->take_all();
}

void check_optimizer_usage(const CLI::App& app, const OptimizerOptions& optimizer) {
  const std::string& kind = optimizer.kind;
  const std::vector<std::string> names = optimizer_kinds();
  if (std::find(names.begin(), names.end(), kind) == names.end()) {
    const std::string why = one_of(names)(kind);
    throw CLI::ValidationError("--optimizer", why);
  }
  const std::vector<std::string> ours = built_in_optimizers();
  only_with(app, std::find(ours.begin(), ours.end(), kind) == ours.end(), "an optimizer of --ops",
            {"--attribute"});
  const auto is = [&](std::initializer_list<std::string_view> kinds) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  };
  only_with(app, is({"sgd"}), "--optimizer sgd", {"--dampening"});
  only_with(app, is({"sgd", "muon"}), "--optimizer sgd or muon", {"--nesterov"});
  only_with(app, is({"sgd", "rmsprop", "muon"}), "--optimizer sgd, rmsprop or muon",
            {"--momentum"});
  only_with(app, is({"adafactor"}), "--optimizer adafactor",
            {"--beta2-decay", "--epsilon2", "--clip-threshold"});
  only_with(app, is({"muon"}), "--optimizer muon",
            {"--ns-coefficients", "--ns-steps", "--adjust-lr-fn"});
  only_with(app, is({"adam", "adamw", "transformers_adamw", "nadam", "radam", "adamax", "lamb"}),
            "--optimizer adam, adamw, transformers_adamw, nadam, radam, adamax or lamb",
            {"--beta1", "--beta2"});
  only_with(app, !is({"sgd"}), "another optimizer than sgd", {"--epsilon"});
  only_with(app, is({"nadam"}), "--optimizer nadam", {"--momentum-decay"});
  only_with(app, is({"adagrad"}), "--optimizer adagrad", {"--lr-decay", "--initial-accumulator"});
  only_with(app, is({"adadelta"}), "--optimizer adadelta", {"--rho"});
  only_with(app, is({"rmsprop"}), "--optimizer rmsprop", {"--alpha", "--centered"});
  only_with(app, is({"adam", "adamw"}), "--optimizer adam or adamw", {"--amsgrad"});
  only_with(app, is({"adam", "nadam", "radam"}), "--optimizer adam, nadam or radam",
            {"--decoupled-weight-decay"});
}

void check_usage(const CLI::App& app, const ModelChoice& choice) {
  const std::string& loss = choice.options.loss;
  if (!loss.empty() && !is_own_loss(choice.options)) {
    if (const std::string why = one_of(loss_names())(loss); !why.empty()) {
      throw CLI::ValidationError("--loss", why + ", or the file of a loss, NAME.onnx");
    }
  }
  if (const std::string& limit = choice.options.memory_limit;
      !limit.empty() && limit != kLeast && parse_bytes(limit) == 0) {
    throw CLI::ValidationError(
        "--memory-limit",
        fmt::format("expected a number of bytes above 0, as in 2GiB or 512M, received '{}'",
                    limit));
  }
  only_with(app, takes_classes(loss), "--loss softmax_cross_entropy or nll",
            {"--ignore-index", "--class-weights"});
  only_with(app, loss == "softmax_cross_entropy", "--loss softmax_cross_entropy",
            {"--label-smoothing"});
  only_with(app, loss == "huber", "--loss huber", {"--huber-delta"});
  only_with(app, choice.options.lora_rank > 0, "--lora", {"--lora-alpha", "--targets"});
  only_with(app, !loss.empty(), "--loss", {"--label", "--label-array"});
}

TrainingOptions training_options(const ModelChoice& choice) {
  TrainingOptions options = choice.options;
  if (!choice.ignore_index.empty()) options.ignore_index = choice.ignore_index[0];
  options.class_weights = class_weights_from(choice.class_weights, options.limits);
  options.providers = providers_of(choice.providers);
  for (const std::string& text : choice.attributes) {
    const auto [name, number] = split_pair(text, "--attribute");
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc{} || end != number.data() + number.size()) {
      throw DataError(ErrorParts{
          .what = "--attribute cannot be read.", .expected = "name=number", .received = text});
    }
    options.optimizer.attributes[name] = value;
  }
  return options;
}

std::map<std::string, Dims> parse_shapes(const std::vector<std::string>& texts) {
  std::map<std::string, Dims> shapes;
  for (const std::string& text : texts) {
    const auto [name, extents] = split_pair(text, "--shape");
    Dims dims;
    const char* p = extents.data();
    const char* end = p + extents.size();
    while (p != end) {
      int64_t dim = 0;
      const auto [next, error] = std::from_chars(p, end, dim);
      const bool ends = next == end || (*next == ',' && next + 1 != end);
      if (error != std::errc{} || dim < 0 || !ends) {
        throw DataError(ErrorParts{
            .what = "--shape cannot be read.", .expected = "input=8,128", .received = text});
      }
      dims.push_back(dim);
      p = next == end ? end : next + 1;
    }
    shapes[name] = dims;
  }
  return shapes;
}

std::vector<Tensor> shells(const std::vector<TensorInfo>& inputs,
                           const std::map<std::string, Dims>& shapes) {
  std::map<std::string, int64_t> bound;
  for (const TensorInfo& input : inputs) {
    const auto entry = shapes.find(input.name);
    if (entry == shapes.end()) continue;
    for (size_t i = 0; i < std::min(entry->second.size(), input.symbols.size()); ++i) {
      if (!input.symbols[i].empty()) bound[input.symbols[i]] = entry->second[i];
    }
  }
  for (const auto& [name, dims] : shapes) {
    const bool known =
        std::any_of(inputs.begin(), inputs.end(),
                    [&, &wanted = name](const TensorInfo& i) { return i.name == wanted; });
    if (!known) throw DataError(ErrorParts{.what = "--shape names no input.", .received = name});
  }
  std::vector<Tensor> result;
  for (const TensorInfo& input : inputs) {
    Dims dims = input.dims;
    bool known = input.has_rank;
    for (size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] >= 0) continue;
      const auto symbol = bound.find(input.symbols[i]);
      known = known && symbol != bound.end();
      if (symbol != bound.end()) dims[i] = symbol->second;
    }
    const auto entry = shapes.find(input.name);
    if (entry != shapes.end()) {
      dims = entry->second;
    } else if (!known) {
      throw ShapeError(ErrorParts{.what = "An input's shape is not known.",
                                  .node = input.name,
                                  .expected = input.text(),
                                  .remedy = fmt::format("Give it: --shape {}=…", input.name)});
    }
    result.push_back(Tensor::wrap(input.dtype, std::move(dims), nullptr, nullptr));
  }
  return result;
}

}  // namespace steep::cli
