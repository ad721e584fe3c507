// A device whose plug-in does one thing wrong: the one that the option "at" names, from call number
// "after" on.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "steep/provider.h"

namespace {

const SteepHost* host = nullptr;

struct Wrong {
  std::string at;
  int after = 0;
  mutable int calls = 0;

  void throw_at(const char* name) const {
    if (at == name && calls++ >= after) throw std::runtime_error(std::string("thrown at ") + name);
  }
};

Wrong& of(void* device) { return *static_cast<Wrong*>(device); }

SteepError* open(int, const char* const* options, void** device) {
  auto* wrong = new Wrong;
  for (; options[0] != nullptr; options += 2) {
    if (std::strcmp(options[0], "at") == 0) wrong->at = options[1];
    if (std::strcmp(options[0], "after") == 0) wrong->after = std::atoi(options[1]);
  }
  if (wrong->at == "open") {
    delete wrong;
    throw 42;
  }
  *device = wrong;
  return nullptr;
}

SteepError* allocate(void* device, SteepMemory, size_t bytes, void** data) {
  of(device).throw_at("allocate");
  *data = of(device).at == "no memory" ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  return nullptr;
}

SteepError* copy(void* device, void* to, const void* from, size_t bytes, SteepDirection,
                 SteepStream) {
  of(device).throw_at("copy");
  std::memcpy(to, from, bytes);
  return nullptr;
}

SteepError* execute(void* self, const SteepArgs* args) {
  const Wrong& wrong = of(self);
  wrong.throw_at("execute");
  if (wrong.at == "error of NULL") return host->error(STEEP_PROVIDER, nullptr);
  if (wrong.at == "error in bytes") {
    SteepErrorText text{};
    text.size = sizeof(text);
    text.what = "\xff\xfe of no text.";
    return host->error(STEEP_PROVIDER, &text);
  }
  auto* y = static_cast<float*>(args->out[0]);
  for (int i = 0; i < 12; ++i) y[i] = 0.25F;
  return nullptr;
}

int make(const SteepCandidate*, void* device, const SteepNode*, SteepKernel* kernel, char* why,
         size_t why_size, SteepError**) {
  const Wrong& wrong = of(device);
  wrong.throw_at("make");
  if (wrong.at == "reason in bytes") {
    std::memset(why, 0xff, why_size);
    return 0;
  }
  kernel->self = device;
  kernel->execute = wrong.at == "no execute" ? nullptr : execute;
  if (wrong.at == "destroy") kernel->destroy = [](void* self) { of(self).throw_at("destroy"); };
  if (wrong.at == "no shares") kernel->may_share_count = 2;
  return 1;
}

const SteepCandidate* candidates(void* device, const char* op, size_t* count) {
  static SteepCandidate all[] = {{sizeof(SteepCandidate), "liar", make}};
  const std::string& at = of(device).at;
  of(device).throw_at("candidates");
  *count = std::strcmp(op, "Softmax") == 0 ? 1 : 0;
  if (at == "no table") return nullptr;
  if (at == "long table") *count = SIZE_MAX;
  all[0].size = at == "small entries" ? 8 : at == "large entries" ? 1U << 30 : sizeof(all[0]);
  all[0].name = at == "no name" ? nullptr : at == "name in bytes" ? "\xff\xfe" : "liar";
  all[0].make = at == "no make" ? nullptr : make;
  return all;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const SteepProvider* steep_provider_0(
    const SteepHost*);
extern "C" const SteepProvider* steep_provider_0(const SteepHost* given) {
  host = given;
  static SteepProvider p{};
  p.size = sizeof(p);
  p.name = "Liar";
  p.devices = [](SteepDeviceInfo*, size_t, size_t* count) -> SteepError* {
    *count = 1;
    return nullptr;
  };
  p.open = open;
  p.close = [](void* device) {
    const Wrong wrong = of(device);
    delete static_cast<Wrong*>(device);
    wrong.throw_at("close");
  };
  p.allocate = allocate;
  p.release = [](void* device, SteepMemory, void* data) {
    std::free(data);
    of(device).throw_at("release");
  };
  p.copy = copy;
  p.stream = [](void* device, SteepStream* stream) -> SteepError* {
    of(device).throw_at("stream");
    *stream = device;
    return nullptr;
  };
  p.drop_stream = [](void* device, SteepStream) { of(device).throw_at("drop_stream"); };
  p.sync = [](void* device, SteepStream) -> SteepError* {
    of(device).throw_at("sync");
    return nullptr;
  };
  p.candidates = candidates;
  p.data_shaped = [](void* device, const char*) -> SteepDataShaped {
    of(device).throw_at("data_shaped");
    return nullptr;
  };
  p.wants_pass = [](void* device, const char*) {
    of(device).throw_at("wants_pass");
    return 1;
  };
  p.multiplies = [](void* device, int32_t) {
    of(device).throw_at("multiplies");
    return 0;
  };
  p.fuse = [](void* device, SteepGraph*) -> SteepError* {
    of(device).throw_at("fuse");
    return nullptr;
  };
  return &p;
}
