// Devices run kernels and hold their operands. One of them is the host, which every plan can use;
// the others belong to plug-ins (steep/provider.h).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "steep/dtype.h"
#include "steep/provider.h"
#include "steep/providers.h"

namespace steep {

/// A provider: the fields of its table that this version knows, null if the plug-in's struct is
/// older. Immutable; lives as long as the process.
struct Provider {
  SteepProvider table{};
  std::string name{};   ///< "Mirror"
  bool linked = false;  ///< in this binary: its kernels may call functions of the engine

  bool on_host() const { return (table.flags & STEEP_HOST_MEMORY) != 0; }
  std::string execution_name() const { return name + "ExecutionProvider"; }
};

/// A provider's candidates for one operator: entries of its table, whose size depends on the
/// provider's version.
class Candidates {
 public:
  Candidates(const SteepCandidate* first, size_t count) : first_(first), count_(count) {}
  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  const SteepCandidate& operator[](size_t i) const {
    const auto* bytes = reinterpret_cast<const std::byte*>(first_);
    return *reinterpret_cast<const SteepCandidate*>(bytes + i * first_->size);
  }

 private:
  const SteepCandidate* first_;
  size_t count_;
};

/// An open device. Not thread-safe, except that any thread may release memory, streams and kernels.
/// Memory and streams keep the device open. In a process that was forked after it was opened, all
/// devices but the host throw ProviderError.
class Device : public std::enable_shared_from_this<Device> {
 public:
  /// Throws the error that the provider reports.
  static std::shared_ptr<Device> open(const Provider& provider, int index,
                                      std::span<const std::string> options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  std::string_view provider() const { return provider_.name; }
  bool on_host() const { return provider_.on_host(); }
  bool linked() const { return provider_.linked; }
  void* handle() const { return handle_; }

  /// Candidates for `op`, fastest first; empty if there are none.
  Candidates candidates(std::string_view op) const;
  bool knows(std::string_view op) const { return !candidates(op).empty(); }
  /// The function for an operator whose output shapes depend on data; null if there is none.
  SteepDataShaped data_shaped(std::string_view op) const;
  /// Whether the pass may rewrite graphs for this device.
  bool wants_pass(std::string_view pass) const;
  /// Whether products of this dtype are faster than float32 products of values that are rounded to
  /// it.
  bool multiplies(DType dtype) const;
  /// How kernels of `op` use a narrow type; nothing if they have to compute in float32.
  std::optional<SteepNarrow> narrows(std::string_view op, DType dtype) const;
  /// A table of the measurements by which the provider chooses kernels, or of new ones; empty if it
  /// chooses by rules alone. Not thread-safe.
  std::string measurements(bool again) const;
  /// Whether the provider fuses nodes; fuse() lets it claim nodes of the graph, and throws the
  /// error that it reports.
  bool fuses() const { return provider_.table.fuse != nullptr; }
  void fuse(SteepGraph* graph) const;

  // The rest is for devices other than the host.

  /// Device memory, aligned to at least 64 bytes, released with the last handle. Throws
  /// OutOfMemoryError and ProviderError, as all of these functions.
  std::shared_ptr<void> allocate(size_t bytes) { return allocate(STEEP_DEVICE_MEMORY, bytes); }
  /// Whether copies are fastest from and to the provider's pinned memory.
  bool copies_pinned() const { return (provider_.table.flags & STEEP_COPIES_PINNED) != 0; }
  /// Pinned memory of the host, for copies.
  std::shared_ptr<void> allocate_pinned(size_t bytes) {
    return allocate(STEEP_PINNED_MEMORY, bytes);
  }
  std::shared_ptr<void> make_stream();
  void copy(void* to, const void* from, size_t bytes, SteepDirection direction,
            SteepStream stream) const;
  /// Waits for all enqueued work, and throws its first error.
  void sync(SteepStream stream) const;
  /// Work that is enqueued on `stream` from now on starts after all work that is now on a stream of
  /// another device. The host waits only if the devices cannot wait for each other.
  void wait(SteepStream stream, const Device& other, SteepStream others) const;

 private:
  Device(const Provider& provider, void* handle);
  std::shared_ptr<void> allocate(SteepMemory kind, size_t bytes);
  void require_process() const;

  const Provider& provider_;
  void* handle_;
  pid_t process_;
};

/// Loads a plug-in, as register_provider() does. It is registered after `accept` has returned; if
/// that throws, nothing is loaded.
std::string load_provider(const std::filesystem::path& library,
                          const std::function<void(const Provider&)>& accept);

/// Devices in the order in which a node is offered to them. The last is always the host.
class Devices {
 public:
  /// The devices of set_default_providers(); by default only the host.
  Devices();
  /// Opens one device for each choice. The host may be named as the last one. Throws ProviderError
  /// if a provider is unknown, has no such device, or refuses an option.
  explicit Devices(std::span<const ProviderChoice> choices);

  /// REQUIRES: the last one, and no other, computes in host memory.
  explicit Devices(std::vector<std::shared_ptr<Device>> all) : all_(std::move(all)) {}
  /// The devices of a session: those of `choices`, or the default ones if there are none.
  static Devices of(std::span<const ProviderChoice> choices) {
    return choices.empty() ? Devices() : Devices(choices);
  }
  static Devices host_alone() { return Devices(std::span<const ProviderChoice>()); }

  const Device& host() const { return *all_.back(); }
  /// All but the host.
  std::span<const std::shared_ptr<Device>> others() const { return {all_.data(), all_.size() - 1}; }
  bool only_host() const { return all_.size() == 1; }
  /// Whether one of the devices has kernels for the operator.
  bool know(std::string_view op) const;
  /// Whether the pass may rewrite graphs for all of the devices.
  bool want_pass(std::string_view pass) const;
  /// The answer of the first device with kernels for `op`.
  std::optional<SteepNarrow> narrows(std::string_view op, DType dtype) const;

 private:
  std::vector<std::shared_ptr<Device>> all_;
};

/// The device that computes in the memory of the process.
std::shared_ptr<Device> host_device();

/// The devices of Programs without choices. For tests, which run on other devices. Not thread-safe.
void set_default_providers(std::vector<ProviderChoice> choices);

}  // namespace steep
