// Where sessions run: providers, the one that Steep comes with and those of plug-ins.
//
//   steep::register_provider("libmirror.so");
//   steep::TrainingSession session("model.onnx", {.loss = "mse", .providers = {{"Mirror"}}});
//
// steep/provider.h is what a plug-in implements; docs/providers.md tells how.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace steep {

/// A provider to run on, by its name ("Mirror" or "MirrorExecutionProvider"), and what it is opened
/// with: "device_id" is the number of its device, by default 0; other options are the provider's
/// own.
struct ProviderChoice {
  std::string name{};
  std::map<std::string, std::string> options{};
};

/// Loads a plug-in for the rest of the process, and returns the name of its provider
/// ("MirrorExecutionProvider"). Code of the plug-in runs: load only what you trust. Loading a file
/// again changes nothing. Thread-safe. Throws ProviderError where the file is no library, lacks the
/// symbol, is of another major version, throws, or says that it cannot work here, where another
/// plug-in has taken the name, and where an operator that it offers cannot be one or has the name
/// of one that is registered (steep/ops.h); the process then stays as it was.
std::string register_provider(const std::filesystem::path& library);

/// Names of the providers that have a device here, the one that Steep comes with
/// ("CPUExecutionProvider") last. Thread-safe.
std::vector<std::string> available_providers();

}  // namespace steep
