// Where sessions run: the built-in provider (the CPU) and those of plug-ins.
//
//   steep::register_provider("libmirror.so");
//   steep::TrainingSession session("model.onnx", {.loss = "mse", .providers = {{"Mirror"}}});
//
// A plug-in implements steep/provider.h; docs/providers.md describes how.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace steep {

/// A provider to run on, by name ("Mirror" or "MirrorExecutionProvider"), with its options:
/// "device_id" is the number of its device, by default 0; all others are defined by the provider.
struct ProviderChoice {
  std::string name{};
  std::map<std::string, std::string> options{};
};

/// Loads a plug-in for the rest of the process, and returns the name of its provider
/// ("MirrorExecutionProvider"). A plug-in is code: load only plug-ins that you trust. To load a
/// file again changes nothing. Thread-safe. Throws ProviderError if the file is not a library,
/// lacks the symbol, is for another major version, throws an exception, or reports that it cannot
/// work on this machine; if another plug-in has the name; and if one of its operators is not valid
/// or has the name of a registered operator (steep/ops.h). Then nothing is loaded.
std::string register_provider(const std::filesystem::path& library);

/// Names of the providers that have a device on this machine; the built-in "CPUExecutionProvider"
/// is the last. Thread-safe.
std::vector<std::string> available_providers();

}  // namespace steep
