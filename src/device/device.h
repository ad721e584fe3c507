// Devices: where kernels run and their operands lie. One of them is the host, on which every plan
// can rely; the others come with plug-ins (steep/provider.h).
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

/// A provider in the engine: the fields that this version knows, null where the plug-in's struct is
/// older. Immutable; lives as long as the process.
struct Provider {
  SteepProvider table{};
  std::string name{};  ///< "Mirror"

  bool on_host() const { return (table.flags & STEEP_HOST_MEMORY) != 0; }
  std::string execution_name() const { return name + "ExecutionProvider"; }
};

/// A provider's candidates for one operator: entries of its table, which are as long as its version
/// makes them.
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

/// A device, opened. One call at a time; memory, streams and kernels may be let go from any thread.
/// Keeps nothing alive; memory and streams keep the device open. In a process forked since it was
/// opened all but the host throw ProviderError.
class Device : public std::enable_shared_from_this<Device> {
 public:
  /// Throws what the provider reports.
  static std::shared_ptr<Device> open(const Provider& provider, int index,
                                      std::span<const std::string> options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  std::string_view provider() const { return provider_.name; }
  bool on_host() const { return provider_.on_host(); }
  void* handle() const { return handle_; }

  /// Candidates for `op`, fastest first; empty when there are none.
  Candidates candidates(std::string_view op) const;
  bool knows(std::string_view op) const { return !candidates(op).empty(); }
  /// The kernel of an operator whose output shapes depend on data; null when there is none.
  SteepDataShaped data_shaped(std::string_view op) const;
  /// May the pass rewrite graphs for this device?
  bool wants_pass(std::string_view pass) const;
  /// Are products of this dtype faster than those of float32 rounded to it?
  bool multiplies(DType dtype) const;
  /// How kernels of `op` take a narrow type; nothing where they are to compute in float32.
  std::optional<SteepNarrow> narrows(std::string_view op, DType dtype) const;
  /// What it claims of the graph, if it fuses nodes. Throws what the provider reports.
  bool fuses() const { return provider_.table.fuse != nullptr; }
  void fuse(SteepGraph* graph) const;

  // The rest is for devices that are not the host.

  /// Device memory, aligned to 64 bytes and more, released with the last handle. Throws
  /// OutOfMemoryError and ProviderError, as all of these.
  std::shared_ptr<void> allocate(size_t bytes) { return allocate(STEEP_DEVICE_MEMORY, bytes); }
  /// Is the host's side of copies to be of its pinned memory?
  bool copies_pinned() const { return (provider_.table.flags & STEEP_COPIES_PINNED) != 0; }
  /// Memory of the host, for copies.
  std::shared_ptr<void> allocate_pinned(size_t bytes) {
    return allocate(STEEP_PINNED_MEMORY, bytes);
  }
  std::shared_ptr<void> make_stream();
  void copy(void* to, const void* from, size_t bytes, SteepDirection direction,
            SteepStream stream) const;
  /// Waits for all that was enqueued; throws the first error of it.
  void sync(SteepStream stream) const;
  /// What is enqueued on `stream` from now on begins after what was enqueued on a stream of
  /// another device: the host waits only if the devices cannot wait for each other.
  void wait(SteepStream stream, const Device& other, SteepStream others) const;

 private:
  Device(const Provider& provider, void* handle);
  std::shared_ptr<void> allocate(SteepMemory kind, size_t bytes);
  void require_process() const;

  const Provider& provider_;
  void* handle_;
  pid_t process_;
};

/// Loads a plug-in, as register_provider() says, once `accept` has returned for it; what that
/// throws leaves everything as it was.
std::string load_provider(const std::filesystem::path& library,
                          const std::function<void(const Provider&)>& accept);

/// Devices in the order in which a node is offered to them. The host is always the last.
class Devices {
 public:
  /// The default of this process: the host alone, unless set_default_providers() says otherwise.
  Devices();
  /// Opens one device for each choice. The host may be named, as the last, and need not be. Throws
  /// ProviderError where a provider is unknown, has no such device or does not take an option.
  explicit Devices(std::span<const ProviderChoice> choices);

  /// REQUIRES: the last one, and no other, is of host memory.
  explicit Devices(std::vector<std::shared_ptr<Device>> all) : all_(std::move(all)) {}
  /// Those of a session: opened, or without any choice the default.
  static Devices of(std::span<const ProviderChoice> choices) {
    return choices.empty() ? Devices() : Devices(choices);
  }
  static Devices host_alone() { return Devices(std::span<const ProviderChoice>()); }

  const Device& host() const { return *all_.back(); }
  /// All but the host.
  std::span<const std::shared_ptr<Device>> others() const { return {all_.data(), all_.size() - 1}; }
  bool only_host() const { return all_.size() == 1; }
  /// Has one of them a kernel for it?
  bool know(std::string_view op) const;
  /// May the pass rewrite graphs for all of them?
  bool want_pass(std::string_view pass) const;
  /// As the first device with kernels for `op` says.
  std::optional<SteepNarrow> narrows(std::string_view op, DType dtype) const;

 private:
  std::vector<std::shared_ptr<Device>> all_;
};

/// The device that computes in the process's own memory.
std::shared_ptr<Device> host_device();

/// Where Programs run that are not told; for tests, which run whole suites elsewhere. Not
/// thread-safe.
void set_default_providers(std::vector<ProviderChoice> choices);

}  // namespace steep
