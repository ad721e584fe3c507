// The providers of this process: the linked one, and the loaded plug-ins.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>

#include "device/boundary.h"
#include "device/device.h"
#include "runtime/utf8.h"
#include "steep/error.h"

/// The provider of host memory that is linked into this binary (providers/).
extern "C" const SteepProvider* steep_linked_provider(const SteepHost* host);

namespace steep {
namespace {

struct Registry {
  std::mutex mutex;
  std::deque<Provider> plugins;            // a deque, so that addresses do not change
  std::map<std::string, Provider*> files;  // by path
};

/// Never destroyed: threads may still compute while the process ends.
Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

std::vector<ProviderChoice>& default_choices() {
  static auto* choices = new std::vector<ProviderChoice>;
  return *choices;
}

[[noreturn]] void refuse(const std::string& path, std::string what, std::string received,
                         std::string remedy) {
  throw ProviderError({.what = std::move(what),
                       .node = path,
                       .expected = fmt::format("a shared library with the symbol {} of "
                                               "steep/provider.h",
                                               STEEP_PROVIDER_SYMBOL),
                       .received = std::move(received),
                       .remedy = std::move(remedy)});
}

/// The major version in the name of the library's symbol; -1 if there is no such symbol.
int major_of(void* library) {
  for (int major = 0; major < 64; ++major) {
    if (dlsym(library, fmt::format("steep_provider_{}", major).c_str()) != nullptr) return major;
  }
  return -1;
}

/// Throws the error that the provider reports.
size_t device_count(const Provider& p) {
  size_t count = 0;
  if (SteepError* error = p.table.devices(nullptr, 0, &count)) throw_error(error);
  return count;
}

/// The error or exception of `f`, which calls the plug-in, as text; "" if there is none.
template <typename F>
std::string failure_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {  // an error that crossed the interface
    return e.parts().what;
  } catch (const std::exception& e) {
    return std::string("an exception: ") + e.what();
  } catch (...) {
    return "an exception";
  }
  return "";
}

Provider known_fields(const SteepProvider& table) {
  Provider p;
  std::memcpy(&p.table, &table, std::min(table.size, sizeof(p.table)));
  p.name = p.table.name == nullptr ? "" : p.table.name;
  return p;
}

/// Loads one file. Throws if it cannot be used, and then closes the library.
Provider load(const std::string& path) {
  struct Library {
    void* handle;
    bool keep = false;
    ~Library() {
      if (handle != nullptr && !keep) dlclose(handle);
    }
  };
  Library library{nullptr};
  try {
    library.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  } catch (...) {  // from an initialiser of the library
    library.keep = true;
    refuse(path, "A provider threw an exception while it was loaded.", "", "Ask its author.");
  }
  if (library.handle == nullptr) {
    refuse(path, "A provider cannot be loaded.", dlerror(),
           "Give the path of the plug-in's library, and install what it needs.");
  }
  const int major = major_of(library.handle);
  if (major < 0) {
    refuse(path, "A library is not a provider.", "no such symbol",
           "Give the path of a plug-in for Steep.");
  }
  if (major != STEEP_PROVIDER_MAJOR) {
    refuse(path, "A provider was built for another version of the provider interface.",
           fmt::format("steep_provider_{}", major),
           major > STEEP_PROVIDER_MAJOR ? "Install a newer Steep, or an older plug-in."
                                        : "Install a newer plug-in, or an older Steep.");
  }
  const auto entry =
      reinterpret_cast<SteepProviderEntry>(dlsym(library.handle, STEEP_PROVIDER_SYMBOL));
  const SteepProvider* table = nullptr;
  // The library stays loaded, because the exception may need its code.
  if (std::string failure = failure_of([&] { table = entry(&host_table()); }); !failure.empty()) {
    library.keep = true;
    refuse(path, "A provider threw an exception while it was loaded.", failure, "Ask its author.");
  }
  if (table == nullptr) {
    refuse(path, "A provider reports that it cannot work on this machine.", "no provider",
           "Check what it needs: a driver, a device.");
  }
  Provider p = known_fields(*table);
  const SteepProvider& t = p.table;
  const bool host = p.on_host();
  if (p.name.empty() || !is_utf8(p.name) || t.candidates == nullptr || t.open == nullptr ||
      t.close == nullptr || t.devices == nullptr ||
      (!host && (t.allocate == nullptr || t.release == nullptr || t.copy == nullptr ||
                 t.stream == nullptr || t.drop_stream == nullptr || t.sync == nullptr))) {
    refuse(path, "A provider has no name, or lacks functions that every provider needs.",
           as_utf8(p.name), "Ask its author.");
  }
  library.keep = true;
  if (std::string failure = failure_of([&] { device_count(p); }); !failure.empty()) {
    refuse(path, "A provider cannot list its devices.", failure,
           "Check what it needs: a driver, a device.");
  }
  return p;
}

std::string short_name(std::string name) {
  constexpr std::string_view kTail = "ExecutionProvider";
  if (name.ends_with(kTail)) name.resize(name.size() - kTail.size());
  return name;
}

const Provider& linked() {
  static const auto* provider = [] {
    auto* p = new Provider;
    if (const char* path = std::getenv("STEEP_HOST_PROVIDER"); path != nullptr && *path != 0) {
      try {
        *p = load(path);
      } catch (const ProviderError& e) {
        ErrorParts parts = e.parts();
        parts.what += " The environment variable STEEP_HOST_PROVIDER names it.";
        parts.remedy += " Or unset the variable, to compute with Steep's own kernels.";
        throw ProviderError(std::move(parts));
      }
    } else {
      *p = known_fields(*steep_linked_provider(&host_table()));
      p->linked = true;
    }
    if (!p->on_host()) {
      throw ProviderError(
          {.what = "STEEP_HOST_PROVIDER does not compute in the host's memory.", .node = p->name});
    }
    if (p->table.ops != nullptr) {
      throw ProviderError({.what = "STEEP_HOST_PROVIDER offers operators of its own.",
                           .node = p->name,
                           .expected = "kernels of known operators; plug-ins with operators of "
                                       "their own are loaded by register_provider"});
    }
    return p;
  }();
  return *provider;
}

const Provider* find(const std::string& name) {
  if (name == linked().name) return &linked();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const Provider& p : all.plugins) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

std::string names(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& n : list) text += (text.empty() ? "" : ", ") + n;
  return text;
}

std::shared_ptr<Device> open(const ProviderChoice& choice) {
  const Provider* p = find(short_name(choice.name));
  if (p == nullptr) {
    throw ProviderError({.what = "There is no such provider.",
                         .node = choice.name,
                         .expected = "one of " + names(available_providers()),
                         .remedy = "Load its plug-in first: register_provider(path)."});
  }
  int index = 0;
  std::vector<std::string> options;
  for (const auto& [key, value] : choice.options) {
    if (key != "device_id") {
      options.push_back(key), options.push_back(value);
      continue;
    }
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), index);
    if (error != std::errc{} || end != value.data() + value.size()) index = -1;
  }
  const size_t count = device_count(*p);
  if (index < 0 || static_cast<size_t>(index) >= count) {
    throw ProviderError(
        {.what = "The provider has no such device.",
         .node = p->execution_name(),
         .expected = fmt::format("a device_id below {}", count),
         .received = choice.options.contains("device_id") ? choice.options.at("device_id") : "0",
         .remedy = count == 0
                       ? "This machine has no device of the provider: run on another provider."
                       : "Give another device_id."});
  }
  if (p == &linked()) {
    if (!options.empty()) {
      throw ProviderError({.what = "The provider has no such option.",
                           .node = p->execution_name(),
                           .expected = "no options",
                           .received = options[0],
                           .remedy = "Leave it out."});
    }
    return host_device();
  }
  return Device::open(*p, index, options);
}

}  // namespace

std::string load_provider(const std::filesystem::path& library,
                          const std::function<void(const Provider&)>& accept) {
  std::error_code error;
  const bool bare = !library.has_parent_path() && !std::filesystem::exists(library, error);
  const std::filesystem::path whole = std::filesystem::canonical(library, error);
  const std::string path = bare || error ? library.string() : whole.string();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (auto it = all.files.find(path); it != all.files.end()) return it->second->execution_name();
  Provider p = load(path);
  bool taken = p.name == linked().name;
  for (const Provider& other : all.plugins) taken = taken || other.name == p.name;
  if (taken) {
    throw ProviderError({.what = "There is a provider of this name already.",
                         .node = path,
                         .received = p.execution_name(),
                         .remedy = "Load only one of the two."});
  }
  accept(p);
  all.files[path] = &all.plugins.emplace_back(std::move(p));
  return all.plugins.back().execution_name();
}

std::vector<std::string> available_providers() {
  std::vector<std::string> list;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const Provider& p : all.plugins) {
    size_t count = 0;  // a provider that fails has no devices
    if (failure_of([&] { count = device_count(p); }).empty() && count > 0)
      list.push_back(p.execution_name());
  }
  list.push_back(linked().execution_name());
  return list;
}

std::shared_ptr<Device> host_device() {
  static const auto* device = new std::shared_ptr<Device>(Device::open(linked(), 0, {}));
  return *device;
}

Devices::Devices() : Devices(default_choices()) {}

bool Devices::know(std::string_view op) const {
  return std::any_of(all_.begin(), all_.end(), [&](const auto& d) { return d->knows(op); });
}

Devices::Devices(std::span<const ProviderChoice> choices) {
  for (const ProviderChoice& choice : choices) {
    if (!all_.empty() && all_.back() == host_device()) break;  // it accepts every node
    all_.push_back(open(choice));
  }
  if (all_.empty() || all_.back() != host_device()) all_.push_back(host_device());
  for (const auto& device : others()) {
    if (device->on_host()) {
      throw ProviderError({.what = "Two providers of host memory cannot be used at once.",
                           .node = std::string(device->provider()),
                           .remedy = "Set STEEP_HOST_PROVIDER to the path of the one to use."});
    }
  }
}

void set_default_providers(std::vector<ProviderChoice> choices) {
  default_choices() = std::move(choices);
}

}  // namespace steep
