#include "device/device.h"

#include <unistd.h>

#include <algorithm>

#include "device/boundary.h"
#include "device/provider_call.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

void check(SteepError* error) {
  if (error != nullptr) throw_error(error);
}

}  // namespace

std::shared_ptr<Device> Device::open(const Provider& provider, int index,
                                     std::span<const std::string> options) {
  std::vector<const char*> raw;
  for (const std::string& option : options) raw.push_back(option.c_str());
  raw.push_back(nullptr);
  void* handle = nullptr;
  if (provider.table.open != nullptr) {
    call_provider(provider.name, "open",
                  [&] { check(provider.table.open(index, raw.data(), &handle)); });
  }
  return std::shared_ptr<Device>(new Device(provider, handle));
}

Device::Device(const Provider& provider, void* handle)
    : provider_(provider), handle_(handle), process_(getpid()) {}

Device::~Device() {
  // After a fork, the device's threads and connections exist only in the process that opened it.
  if (provider_.table.close == nullptr || process_ != getpid()) return;
  end_quietly([&] { provider_.table.close(handle_); });
}

void Device::require_process() const {
  if (process_ == getpid()) return;
  throw ProviderError(
      {.what = "A forked process cannot use a device that its parent process opened.",
       .node = provider_.execution_name(),
       .remedy = "Open the session in the child, or start it by \"spawn\"."});
}

Candidates Device::candidates(std::string_view op) const {
  size_t count = 0;
  const SteepCandidate* const first = call_provider(provider_.name, "candidates", [&] {
    return provider_.table.candidates(handle_, std::string(op).c_str(), &count);
  });
  if (count == 0) return {nullptr, 0};
  table_stride(provider_.name, "candidates", first == nullptr ? 0 : first->size,
               sizeof(SteepCandidate), count);
  const Candidates all(first, count);
  for (size_t i = 0; i < count; ++i) {
    if (all[i].make != nullptr && all[i].name != nullptr && is_utf8(all[i].name)) continue;
    blame(provider_.name, "A kernel candidate of a provider is not valid.",
          "a name in UTF-8 and `make`",
          "candidate " + std::to_string(i) + " for " + std::string(op));
  }
  return all;
}

SteepDataShaped Device::data_shaped(std::string_view op) const {
  const auto find = provider_.table.data_shaped;
  if (find == nullptr) return nullptr;
  return call_provider(provider_.name, "data_shaped",
                       [&] { return find(handle_, std::string(op).c_str()); });
}

bool Device::wants_pass(std::string_view pass) const {
  const auto wants = provider_.table.wants_pass;
  return wants == nullptr || call_provider(provider_.name, "wants_pass", [&] {
           return wants(handle_, std::string(pass).c_str()) != 0;
         });
}

bool Device::multiplies(DType dtype) const {
  const auto multiplies = provider_.table.multiplies;
  return multiplies != nullptr && call_provider(provider_.name, "multiplies", [&] {
           return multiplies(handle_, static_cast<int32_t>(dtype)) != 0;
         });
}

std::optional<SteepNarrow> Device::narrows(std::string_view op, DType dtype) const {
  SteepNarrow how{};
  how.size = sizeof(how);
  const auto ask = provider_.table.narrows;
  if (ask == nullptr) return {};
  const bool narrow = call_provider(provider_.name, "narrows", [&] {
    return ask(handle_, std::string(op).c_str(), static_cast<int32_t>(dtype), &how) != 0;
  });
  return narrow ? std::optional(how) : std::nullopt;
}

std::string Device::measurements(bool again) const {
  const auto ask = provider_.table.measurements;
  const char* text = nullptr;
  if (ask != nullptr) {
    call_provider(provider_.name, "measurements", [&] { check(ask(handle_, again, &text)); });
  }
  return text == nullptr ? std::string() : text;
}

void Device::fuse(SteepGraph* graph) const {
  call_provider(provider_.name, "fuse", [&] { check(provider_.table.fuse(handle_, graph)); });
}

std::shared_ptr<void> Device::allocate(SteepMemory kind, size_t bytes) {
  require_process();
  void* data = nullptr;
  if (bytes > 0) {
    call_provider(provider_.name, "allocate",
                  [&] { check(provider_.table.allocate(handle_, kind, bytes, &data)); });
    if (data == nullptr) {
      blame(provider_.name, "A provider returned no memory and reported no error.",
            counted(bytes, "byte"), "NULL");
    }
  }
  return {data, [self = shared_from_this(), kind](void* p) {
            if (p == nullptr || self->process_ != getpid()) return;
            end_quietly([&] { self->provider_.table.release(self->handle_, kind, p); });
          }};
}

std::shared_ptr<void> Device::make_stream() {
  require_process();
  SteepStream stream = nullptr;
  call_provider(provider_.name, "stream", [&] { check(provider_.table.stream(handle_, &stream)); });
  return {stream, [self = shared_from_this()](void* s) {
            if (s == nullptr || self->process_ != getpid()) return;
            end_quietly([&] { self->provider_.table.drop_stream(self->handle_, s); });
          }};
}

void Device::copy(void* to, const void* from, size_t bytes, SteepDirection direction,
                  SteepStream stream) const {
  require_process();
  if (bytes == 0) return;
  call_provider(provider_.name, "copy",
                [&] { check(provider_.table.copy(handle_, to, from, bytes, direction, stream)); });
}

void Device::sync(SteepStream stream) const {
  require_process();
  call_provider(provider_.name, "sync", [&] { check(provider_.table.sync(handle_, stream)); });
}

void Device::wait(SteepStream stream, const Device& other, SteepStream others) const {
  require_process();
  if (&provider_ != &other.provider_ || provider_.table.wait == nullptr) return other.sync(others);
  call_provider(provider_.name, "wait",
                [&] { check(provider_.table.wait(handle_, stream, others)); });
}

std::optional<SteepNarrow> Devices::narrows(std::string_view op, DType dtype) const {
  const auto first =
      std::find_if(all_.begin(), all_.end(), [&](const auto& device) { return device->knows(op); });
  return first == all_.end() ? std::nullopt : (*first)->narrows(op, dtype);
}

bool Devices::want_pass(std::string_view pass) const {
  return std::all_of(all_.begin(), all_.end(),
                     [&](const auto& device) { return device->wants_pass(pass); });
}

}  // namespace steep
