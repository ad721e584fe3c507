// Options that several commands share, and their conversion.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "steep/steep.h"

namespace steep::cli {

/// The key of --disable-pass, which commands other than `steep train` have, too.
constexpr std::string_view kDisabledPasses = "disabled_passes";

/// MODEL, --ops, --loss, --output, --label, --ignore-index, --train, --freeze; --provider.
struct ModelChoice {
  std::string path;
  std::vector<std::string> ops;
  TrainingOptions options;
  std::vector<int64_t> ignore_index;    ///< none or one
  std::string class_weights;            ///< numbers, or a file of them
  std::vector<std::string> providers;   ///< "NAME or PATH[,option=value…]"
  std::vector<std::string> attributes;  ///< "name=number"
};
/// --max-bytes, --max-nodes.
void add_limit_options(CLI::App& app, Limits& limits);
void add_model_options(CLI::App& app, ModelChoice& choice);
void add_provider_option(CLI::App& app, std::vector<std::string>& providers);
/// Converts the words of --provider. Loads the plug-ins; throws ProviderError and DataError.
std::vector<ProviderChoice> providers_of(const std::vector<std::string>& texts);
/// --disable-pass: names of passes, which parsing appends to `disabled`.
void add_pass_option(CLI::App& app, std::vector<std::string>& disabled);
/// --ops: files of operators and optimizers.
void add_ops_option(CLI::App& app, std::vector<std::string>& files);
/// Registers the operators and optimizers in the files. Throws as register_ops().
void load_ops(const std::vector<std::string>& files, const Limits& limits);
/// Adds --optimizer, with the help text `what`, and --attribute.
void add_optimizer_option(CLI::App& app, ModelChoice& choice, const char* what);
/// To be called after load_ops(). Throws CLI::Error for an unknown optimizer, and for a setting
/// that the optimizer does not have.
void check_optimizer_usage(const CLI::App& app, const OptimizerOptions& optimizer);
/// Throws CLI::Error for an option that has no effect.
void check_usage(const CLI::App& app, const ModelChoice& choice);
/// Returns `options`, completed by the fields that parsing filled. Loads the plug-ins of providers.
/// Throws ProviderError and DataError.
TrainingOptions training_options(const ModelChoice& choice);

/// Splits "name=value". Throws DataError that names `option`.
std::pair<std::string, std::string> split_pair(const std::string& text, const char* option);

/// "x=8,128" → shapes by name. Throws DataError.
std::map<std::string, Dims> parse_shapes(const std::vector<std::string>& texts);

/// A tensor without bytes for each input. Extents come from `shapes`, from the model if it fixes
/// them, or from a symbol whose extent another input's shape gives. Throws ShapeError that names
/// the first input with an unknown extent.
std::vector<Tensor> shells(const std::vector<TensorInfo>& inputs,
                           const std::map<std::string, Dims>& shapes);

}  // namespace steep::cli
