// The provider table that the engine reads, and its functions.
#include <array>
#include <cstring>
#include <memory>
#include <new>

#include "kernels.h"

namespace mirror {

const SteepHost* host = nullptr;

SteepError* error(SteepErrorKind kind, const std::string& what, const std::string& received,
                  const std::string& remedy) {
  SteepErrorText text{};
  text.size = sizeof(text);
  text.what = what.c_str();
  text.received = received.c_str();
  text.remedy = remedy.c_str();
  return host->error(kind, &text);
}

// --- reading nodes

Operand operand_of(const SteepOperand& raw) {
  Operand o;
  o.type = raw.dtype;
  if (raw.rank > 0) o.dims.assign(raw.dims, raw.dims + raw.rank);
  o.constant = raw.constant;
  o.value = raw.value;
  return o;
}

Operand Node::in(int i) const {
  SteepOperand raw{};
  raw.size = sizeof(raw);
  host->input(raw_, i, &raw);
  return operand_of(raw);
}

Operand Node::out(int i) const {
  SteepOperand raw{};
  raw.size = sizeof(raw);
  host->output(raw_, i, &raw);
  return operand_of(raw);
}

SteepAttr Node::find(const char* name) const {
  for (int i = 0; i < host->attr_count(raw_); ++i) {
    SteepAttr raw{};
    raw.size = sizeof(raw);
    raw.tensor.size = sizeof(raw.tensor);
    host->attr(raw_, i, &raw);
    if (std::strcmp(raw.name, name) == 0) return raw;
  }
  return {};
}

SteepAttr Node::attr(const char* name, int32_t kind) const {
  const SteepAttr found = find(name);
  if (found.kind != kind) throw std::runtime_error(op() + " declares no such attribute: " + name);
  return found;
}

int64_t Node::integer(const char* name) const { return attr(name, STEEP_ATTR_INT).integer; }

double Node::real(const char* name) const { return attr(name, STEEP_ATTR_REAL).real; }

std::string Node::string(const char* name) const {
  const SteepAttr a = attr(name, STEEP_ATTR_STRING);
  return {a.string, a.count};
}

Dims Node::ints(const char* name) const {
  const SteepAttr a = find(name);
  return a.kind == STEEP_ATTR_INTS ? Dims(a.ints, a.ints + a.count) : Dims();
}

const SteepGraph* Node::body() const {
  const SteepAttr a = find("body");
  return a.kind == STEEP_ATTR_BODY ? a.body : nullptr;
}

bool all_floats(const Node& node, std::string& why, uint64_t others) {
  for (int i = 0; i < node.inputs() + node.outputs(); ++i) {
    const bool input = i < node.inputs();
    const Operand o = input ? node.in(i) : node.out(i - node.inputs());
    if (!o.present() || o.type == kFloat || (input && (others >> i & 1U) != 0)) continue;
    why = "an operand or result is not float32";
    return false;
  }
  return true;
}

Dims broadcast_strides(const Dims& out, const Dims& in) {
  Dims strides(out.size(), 0);
  int64_t stride = 1;
  for (size_t i = in.size(); i-- > 0;) {
    if (in[i] != 1) strides[out.size() - in.size() + i] = stride;
    stride *= in[i];
  }
  return strides;
}

namespace {

// --- kernels

/// The object that SteepKernel::self points to.
struct Compiled {
  Device* device;
  Kernel kernel;
  std::vector<bool> reads, writes;  // by operand: is it present
  std::vector<std::array<int32_t, 2>> may_share;
};

SteepError* execute(void* self, const SteepArgs* args) {
  try {
    const auto& c = *static_cast<const Compiled*>(self);
    const Memory& memory = c.device->memory;
    Pointers at;
    for (size_t i = 0; i < c.reads.size(); ++i) {
      const bool here = i < 64 && (c.kernel.host_inputs >> i & 1U) != 0;
      at.in.push_back(here || !c.reads[i] ? args->in[i] : memory.seen_by_device(args->in[i]));
    }
    for (size_t i = 0; i < c.writes.size(); ++i)
      at.out.push_back(c.writes[i] ? memory.seen_by_device(args->out[i]) : nullptr);
    static_cast<Stream*>(args->stream)->enqueue(c.kernel.bind(at));
    return nullptr;
  } catch (const std::bad_alloc&) {
    return error(STEEP_MEMORY, "There is no memory for the work of a device.");
  } catch (const std::exception& e) {
    return error(STEEP_BUG, "A kernel failed.", e.what());
  }
}

void destroy(void* self) { delete static_cast<Compiled*>(self); }

/// An entry of the engine's table, with the function that makes its kernel.
struct Entry {
  SteepCandidate raw;
  Make make;
};

int make(const SteepCandidate* self, void* device, const SteepNode* raw, SteepKernel* to, char* why,
         size_t why_size, SteepError** failure) {
  try {
    const Node node(raw);
    std::string reason;
    std::optional<Kernel> kernel = reinterpret_cast<const Entry*>(self)->make(node, reason);
    if (!kernel) {
      const size_t length = std::min(reason.size(), why_size - 1);
      std::memcpy(why, reason.data(), length);
      why[length] = 0;
      return 0;
    }
    auto compiled = std::make_unique<Compiled>();
    compiled->device = static_cast<Device*>(device);
    compiled->kernel = std::move(*kernel);
    for (int i = 0; i < node.inputs(); ++i) compiled->reads.push_back(node.in(i).present());
    for (int i = 0; i < node.outputs(); ++i) compiled->writes.push_back(node.out(i).present());
    for (auto [i, o] : compiled->kernel.may_share) compiled->may_share.push_back({i, o});
    SteepKernel made{};
    made.size = to->size;
    made.execute = execute;
    made.destroy = destroy;
    made.may_share = reinterpret_cast<const int32_t(*)[2]>(compiled->may_share.data());
    made.may_share_count = compiled->may_share.size();
    made.host_inputs = compiled->kernel.host_inputs;
    made.self = compiled.release();
    std::memcpy(to, &made, std::min(to->size, sizeof(made)));
    return 1;
  } catch (const std::bad_alloc&) {
    *failure = error(STEEP_MEMORY, "There is no memory for a kernel.");
  } catch (const std::exception& e) {
    *failure = error(STEEP_BUG, "A kernel could not be made.", e.what());
  }
  return 0;
}

const SteepCandidate* candidates(void*, const char* op, size_t* count) {
  static const auto table = [] {
    std::map<std::string, Entry, std::less<>> all;
    const auto add = [&](const std::string& name, Make f) {
      all[name] = {{sizeof(Entry), "mirror", make}, f};
    };
    for (const std::string& name : elementwise_ops()) add(name, make_elementwise);
    add("steep.Fused", make_fused);
    add("MatMul", make_matmul);
    add("steep.MatMul", make_matmul);
    add("Gather", make_gather);
    add("steep.GatherGrad", make_gather_grad);
    add("Transpose", make_transpose);
    add("steep.Adam", make_adam);
    add("steep.SGD", make_sgd);
    add("ReduceSum", make_reduce_sum);
    add("steep.SumTo", make_sum_to);
    add("mirror.AddNorm", make_add_norm);
    add("mirror.Swish", make_swish);
    add("Softmax", make_softmax);
    add("LayerNormalization", make_layer_norm);
    add("steep.LayerNormalizationGrad", make_layer_norm_grad);
    return all;
  }();
  const auto it = table.find(std::string_view(op));
  *count = it == table.end() ? 0 : 1;
  return it == table.end() ? nullptr : &it->second.raw;
}

// --- devices and memory

SteepError* devices(SteepDeviceInfo* infos, size_t room, size_t* count) {
  *count = 2;  // any number would work: two show how devices wait for each other
  for (size_t i = 0; i < std::min(room, *count); ++i) {
    SteepDeviceInfo info{};
    info.size = infos->size;
    std::strcpy(info.name, "a thread");
    std::memcpy(reinterpret_cast<std::byte*>(infos) + i * info.size, &info,
                std::min(info.size, sizeof(info)));
  }
  return nullptr;
}

SteepError* open(int, const char* const* options, void** device) {
  try {
    uint64_t megabytes = 4096;
    for (; *options != nullptr; options += 2) {
      char* end = nullptr;
      megabytes = std::strtoull(options[1], &end, 10);
      if (std::strcmp(options[0], "memory_mb") != 0 || *end != 0 || megabytes == 0 ||
          megabytes > 1U << 20) {
        return error(STEEP_PROVIDER, "The device does not take this option.",
                     std::string(options[0]) + " = " + options[1],
                     "Leave it out, or give memory_mb a number of megabytes.");
      }
    }
    *device = new Device(megabytes << 20);
    return nullptr;
  } catch (const std::exception& e) {
    return error(STEEP_MEMORY, "The device could not be opened.", e.what(),
                 "Give it less: the option memory_mb.");
  }
}

void close(void* device) { delete static_cast<Device*>(device); }

SteepError* allocate(void* device, SteepMemory kind, size_t bytes, void** data) {
  if (kind == STEEP_PINNED_MEMORY) {
    *data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  } else {
    *data = static_cast<Device*>(device)->memory.allocate(bytes);
  }
  if (*data != nullptr) return nullptr;
  return error(STEEP_MEMORY, "The memory of the device is used up.",
               std::to_string(bytes) + " bytes more",
               "Use smaller shapes, or open the device with a larger memory_mb.");
}

void release(void* device, SteepMemory kind, void* data) {
  if (kind == STEEP_PINNED_MEMORY) {
    std::free(data);
  } else {
    static_cast<Device*>(device)->memory.release(data);
  }
}

SteepError* copy(void* device, void* to, const void* from, size_t bytes, SteepDirection direction,
                 SteepStream stream) {
  try {
    const Memory& memory = static_cast<Device*>(device)->memory;
    if (direction != STEEP_TO_HOST) to = memory.seen_by_device(to);
    if (direction != STEEP_TO_DEVICE) from = memory.seen_by_device(from);
    static_cast<Stream*>(stream)->enqueue([=] { std::memmove(to, from, bytes); });
    return nullptr;
  } catch (const std::exception& e) {
    return error(STEEP_BUG, "A copy could not be enqueued.", e.what());
  }
}

SteepError* stream(void*, SteepStream* made) {
  try {
    *made = new Stream;
    return nullptr;
  } catch (const std::exception& e) {
    return error(STEEP_PROVIDER, "The system starts no thread for a stream.", e.what());
  }
}

void drop_stream(void*, SteepStream stream) { delete static_cast<Stream*>(stream); }

SteepError* wait(void*, SteepStream stream, SteepStream other) {
  try {
    static_cast<Stream*>(stream)->wait(*static_cast<Stream*>(other));
    return nullptr;
  } catch (const std::exception& e) {
    return error(STEEP_BUG, "A wait could not be enqueued.", e.what());
  }
}

SteepError* sync(void*, SteepStream stream) { return static_cast<Stream*>(stream)->sync(); }

/// Tiled attention and chunked scores are optimisations for caches, which this device does not
/// have.
int wants_pass(void*, const char* pass) {
  return std::strstr(pass, "attention") == nullptr && std::strcmp(pass, "chunk_logits") != 0;
}

}  // namespace
}  // namespace mirror

extern "C" __attribute__((visibility("default"))) const SteepProvider* steep_provider_0(
    const SteepHost* given) {
  static const SteepProvider provider = [] {
    SteepProvider p{};
    p.size = sizeof(p);
    p.name = "Mirror";
    p.version = "1";
    p.flags = STEEP_COPIES_PINNED;
    p.devices = mirror::devices;
    p.open = mirror::open;
    p.close = mirror::close;
    p.allocate = mirror::allocate;
    p.release = mirror::release;
    p.copy = mirror::copy;
    p.stream = mirror::stream;
    p.drop_stream = mirror::drop_stream;
    p.sync = mirror::sync;
    p.wait = mirror::wait;
    p.candidates = mirror::candidates;
    p.wants_pass = mirror::wants_pass;
    p.fuse = mirror::fuse;
    p.ops = mirror::ops;
    return p;
  }();
  mirror::host = given;
  return &provider;
}
