// The CPU's implementation of steep/provider.h: converts nodes of the engine to NodeSpecs, and
// returns kernels and errors. Nothing else passes between the two, so this provider can be loaded
// like any other.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <span>

#include "device/caught.h"
#include "providers/cpu/choice.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/isa.h"
#include "steep/error.h"

namespace steep::cpu {
namespace {

const SteepHost* host = nullptr;
thread_local const std::atomic<bool>* team_failed = nullptr;

SteepError* report(SteepErrorKind kind, const ErrorParts& p) {
  const SteepErrorText text{.size = sizeof(text),
                            .what = p.what.c_str(),
                            .node = p.node.c_str(),
                            .op = p.op.c_str(),
                            .expected = p.expected.c_str(),
                            .received = p.received.c_str(),
                            .remedy = p.remedy.c_str()};
  return host->error(kind, &text);
}

/// The SteepError for the exception that is being handled.
SteepError* to_engine_error() {
  const auto [kind, parts] = caught_error("A kernel failed.");
  return report(kind, parts);
}

SteepOperand empty_operand() {
  SteepOperand raw{};
  raw.size = sizeof(raw);
  return raw;
}

DType dtype_of_raw(const SteepOperand& raw) { return static_cast<DType>(raw.dtype); }
Dims dims_of(const SteepOperand& raw) { return {raw.dims, raw.dims + std::max(raw.rank, 0)}; }

/// A tensor that borrows the bytes of a constant from the engine.
Tensor constant_of(const SteepOperand& raw) {
  return Tensor::wrap(dtype_of_raw(raw), dims_of(raw), const_cast<void*>(raw.constant), nullptr);
}

Attrs attrs_of(const SteepNode* node);

Type type_of(const SteepOperand& raw) {
  Type type{.dtype = dtype_of_raw(raw), .shape = {}};
  if (raw.rank < 0) return type;
  Shape shape;
  for (int64_t extent : dims_of(raw)) shape.push_back(extent < 0 ? Dim() : Dim(extent));
  type.shape = std::move(shape);
  return type;
}

/// A body as a Graph. Its constants are copies, because kernels keep them.
Body body_of(const SteepGraph* raw) {
  auto graph = std::make_shared<Graph>();
  std::map<int64_t, Value> values;
  for (int i = 0; i < host->graph_input_count(raw); ++i) {
    SteepOperand x = empty_operand();
    host->graph_input(raw, i, &x);
    values[x.value] = graph->add_input("", type_of(x));
  }
  const auto read = [&](const SteepOperand& x) {
    if (x.dtype == 0) return Value();
    Value& v = values[x.value];
    if (!v && x.constant != nullptr) v = graph->add_constant(constant_of(x).clone());
    return v;
  };
  for (int k = 0; k < host->node_count(raw); ++k) {
    const SteepNode* n = host->node(raw, k);
    std::vector<Value> inputs;
    for (int i = 0; i < host->input_count(n); ++i) {
      SteepOperand x = empty_operand();
      host->input(n, i, &x);
      inputs.push_back(read(x));
    }
    const int outputs = host->output_count(n);
    const Node copy = graph->add_node(host->op(n), inputs, outputs, attrs_of(n), host->name(n));
    for (int i = 0; i < outputs; ++i) {
      SteepOperand y = empty_operand();
      host->output(n, i, &y);
      if (y.dtype == 0) continue;
      graph->set_type(copy.output(i), type_of(y));
      values[y.value] = copy.output(i);
    }
  }
  for (int i = 0; i < host->graph_output_count(raw); ++i) {
    SteepOperand y = empty_operand();
    host->graph_output(raw, i, &y);
    graph->add_output("", read(y));
  }
  return graph;
}

Attr attr_of(const SteepAttr& raw) {
  switch (raw.kind) {
    case STEEP_ATTR_INT: return raw.integer;
    case STEEP_ATTR_REAL: return raw.real;
    case STEEP_ATTR_STRING: return std::string(raw.string, raw.count);
    case STEEP_ATTR_INTS: return Ints(raw.ints, raw.ints + raw.count);
    case STEEP_ATTR_REALS: return Floats(raw.reals, raw.reals + raw.count);
    case STEEP_ATTR_STRINGS: {
      Strings strings;
      for (size_t i = 0; i < raw.count; ++i) strings.emplace_back(raw.strings[i], raw.lengths[i]);
      return strings;
    }
    case STEEP_ATTR_TENSOR: return constant_of(raw.tensor).clone();
    case STEEP_ATTR_BODY: return body_of(raw.body);
    case STEEP_ATTR_NONE: break;
  }
  throw InternalError({.what = "An attribute has an unknown kind.", .node = raw.name});
}

Attrs attrs_of(const SteepNode* node) {
  Attrs attrs;
  for (int i = 0; i < host->attr_count(node); ++i) {
    SteepAttr raw{};
    raw.size = sizeof(raw);
    raw.tensor = empty_operand();
    host->attr(node, i, &raw);
    attrs.set(raw.name, attr_of(raw));
  }
  return attrs;
}

/// A node of the engine as a NodeSpec, with the data that the NodeSpec refers to.
class OwnedSpec {
 public:
  explicit OwnedSpec(const SteepNode* node)
      : attrs_(attrs_of(node)),
        spec{.name = host->name(node),
             .op = host->op(node),
             .attrs = attrs_,
             .inputs = {},
             .outputs = {}} {
    for (int i = 0; i < host->input_count(node); ++i) {
      SteepOperand x = empty_operand();
      host->input(node, i, &x);
      spec.inputs.push_back(operand(x));
    }
    for (int i = 0; i < host->output_count(node); ++i) {
      SteepOperand y = empty_operand();
      host->output(node, i, &y);
      spec.outputs.push_back(operand(y));
    }
  }

 private:
  Operand operand(const SteepOperand& raw) {
    if (raw.dtype == 0) return {};
    const Tensor* constant =
        raw.constant == nullptr ? nullptr : &constants_.emplace_back(constant_of(raw));
    return {dtype_of_raw(raw), dims_of(raw), constant};
  }

  Attrs attrs_;
  std::deque<Tensor> constants_;

 public:
  NodeSpec spec;
};

/// The object that SteepKernel::self points to.
struct Held {
  std::unique_ptr<Kernel> kernel;
  std::vector<std::array<int32_t, 2>> may_share;
};

SteepError* execute(void* self, const SteepArgs* args) {
  try {
    static_cast<Held*>(self)->kernel->execute({args->in, args->out, args->scratch});
    return nullptr;
  } catch (...) {
    return to_engine_error();
  }
}

void destroy(void* self) { delete static_cast<Held*>(self); }

/// An entry of the provider's candidate table.
struct Entry {
  SteepCandidate raw;
  Candidate candidate;
  std::string name;
};

int make(const SteepCandidate* self, void*, const SteepNode* node, SteepKernel* to, char* why,
         size_t why_size, SteepError** error) {
  try {
    const OwnedSpec owner(node);
    std::string reason;
    const auto* entry = reinterpret_cast<const Entry*>(self);
    auto state = std::make_unique<Held>(entry->candidate.make(owner.spec, &reason));
    if (!state->kernel) {
      const size_t length = std::min(reason.size(), why_size - 1);
      std::memcpy(why, reason.data(), length);
      why[length] = 0;
      return 0;
    }
    for (auto [i, o] : state->kernel->may_share) state->may_share.push_back({i, o});
    SteepKernel table{.size = to->size,
                      .self = nullptr,
                      .execute = execute,
                      .destroy = destroy,
                      .scratch_bytes = state->kernel->scratch_bytes,
                      .flops = state->kernel->flops,
                      .may_share = reinterpret_cast<const int32_t(*)[2]>(state->may_share.data()),
                      .may_share_count = state->may_share.size(),
                      .host_inputs = 0};
    table.self = state.release();
    std::memcpy(to, &table, std::min(to->size, sizeof(table)));
    return 1;
  } catch (...) {
    *error = to_engine_error();
    return 0;
  }
}

const SteepCandidate* entries(void*, const char* op, size_t* count) {
  static const auto tables = [] {
    std::map<std::string, std::vector<Entry>, std::less<>> all;
    for (const std::string_view name : known_ops()) {
      auto& table = all[std::string(name)];
      for (const Candidate& c : candidates(name)) {
        table.push_back(
            {{.size = sizeof(Entry), .name = nullptr, .make = make}, c, std::string(c.name)});
      }
      for (Entry& e : table) e.raw.name = e.name.c_str();
    }
    return all;
  }();
  const auto it = tables.find(std::string_view(op));
  *count = it == tables.end() ? 0 : it->second.size();
  return it == tables.end() ? nullptr : &it->second[0].raw;
}

SteepError* run_data_shaped(void*, SteepNode* node) {
  try {
    const OwnedSpec owner(node);
    std::vector<Tensor> inputs;
    for (const Operand& x : owner.spec.inputs)
      inputs.push_back(x.constant == nullptr ? Tensor() : *x.constant);
    const std::vector<Tensor> outputs = data_shaped(owner.spec.op)(owner.spec, inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !owner.spec.out(i).present()) continue;
      void* data = nullptr;
      const Dims& dims = outputs[i].dims();
      if (SteepError* e = host->new_output(node, static_cast<int>(i),
                                           static_cast<int32_t>(dims.size()), dims.data(), &data)) {
        return e;
      }
      if (outputs[i].nbytes() > 0)
        std::memcpy(data, std::as_const(outputs[i]).data(), outputs[i].nbytes());
    }
    return nullptr;
  } catch (...) {
    return to_engine_error();
  }
}

SteepDataShaped find_data_shaped(void*, const char* op) {
  return data_shaped(op) == nullptr ? nullptr : run_data_shaped;
}

SteepError* devices(SteepDeviceInfo* infos, size_t room, size_t* count) {
  *count = 1;
  if (room > 0) {
    SteepDeviceInfo info{.size = infos->size, .name = "CPU", .total_bytes = 0};
    std::memcpy(infos, &info, std::min(infos->size, sizeof(info)));
  }
  return nullptr;
}

SteepError* open_device(int, const char* const*, void** device) {
  try {
    limit_isa();
    require_own_onednn();
    *device = nullptr;
    return nullptr;
  } catch (...) {
    return to_engine_error();
  }
}

void close_device(void*) {}

/// A row for SteepNarrow: an operator whose kernels support 16-bit operands.
struct Narrow {
  std::string_view op;
  uint64_t casts = 0, reads = 0;
  bool prefers = false;
  SteepNarrowResult result = STEEP_RESULT_WIDE;
  int follow = 0;
};
constexpr Narrow kNarrow[] = {
    {.op = "steep.MatMul", .casts = 3, .result = STEEP_RESULT_NARROW},
    {.op = "steep.Attention", .casts = 7, .follow = 1},
    {.op = "steep.AttentionGrad", .casts = 31, .follow = 3},
    {.op = "steep.SumTo", .reads = 1, .prefers = true},
    {.op = "steep.SoftmaxCrossEntropy", .reads = 1},
    {.op = "steep.SoftmaxCrossEntropyGrad", .reads = 2, .result = STEEP_RESULT_NARROW_READ},
    {.op = "steep.LayerNormalizationGrad", .reads = 1},
};

/// Products should be narrow. In bfloat16, so should ops that can read their results without a
/// Cast. In float16, only kernels of products support it.
int narrows(void*, const char* op, int32_t dtype, SteepNarrow* how) {
  const auto* const n = std::find_if(std::begin(kNarrow), std::end(kNarrow),
                                     [&](const Narrow& row) { return row.op == op; });
  const auto type = static_cast<DType>(dtype);
  if (n == std::end(kNarrow)) return 0;
  if (type != DType::bf16 && (type != DType::f16 || n->op != "steep.MatMul")) return 0;
  const SteepNarrow narrow{.size = how->size,
                           .casts = n->casts,
                           .reads = n->reads,
                           .prefers = n->prefers ? 1 : 0,
                           .result = n->result,
                           .follow = n->follow};
  std::memcpy(how, &narrow, std::min(how->size, sizeof(narrow)));
  return 1;
}

SteepError* measurements(void*, int again, const char** text) {
  try {
    static std::string table;
    table = product_table(again != 0);
    *text = table.c_str();
    return nullptr;
  } catch (...) {
    return to_engine_error();
  }
}

int multiplies(void*, int32_t dtype) { return has_products(static_cast<DType>(dtype)) ? 1 : 0; }

}  // namespace

Team::Team(const std::atomic<bool>& failed) : before_(team_failed) { team_failed = &failed; }
Team::~Team() { team_failed = before_; }

void poll() {
  if (team_failed != nullptr && *team_failed)
    throw InterruptedError({.what = "Another thread of the loop failed."});
  if (host == nullptr) return;  // a test runs the kernel directly
  if (SteepError* error = host->poll(); error != nullptr) {
    host->drop_error(error);
    throw InterruptedError({.what = "The call was interrupted."});
  }
}

void require_bytes(size_t bytes, const std::string& received) {
  const size_t most = host == nullptr ? SIZE_MAX : host->max_bytes();
  if (bytes <= most) return;
  throw OutOfMemoryError(
      {.what = "A value exceeds the memory budget.",
       .expected = fmt::format("at most {} bytes", most),
       .received = fmt::format("{}: {} bytes", received, bytes),
       .remedy = "If this is intended, raise Limits::max_bytes (max_bytes= in Python, --max-bytes, "
                 "STEEP_MAX_BYTES); else use smaller shapes."});
}

}  // namespace steep::cpu

extern "C" __attribute__((visibility("default"))) const SteepProvider* steep_provider_0(
    const SteepHost* table) {
  using namespace steep::cpu;
  static const SteepProvider provider = [] {
    SteepProvider p{};  // missing functions (memory, streams) are null
    p.size = sizeof(p);
    p.name = "CPU";
    p.version = "0";
    p.flags = STEEP_HOST_MEMORY;
    p.devices = devices;
    p.open = open_device;
    p.close = close_device;
    p.candidates = entries;
    p.data_shaped = find_data_shaped;
    p.multiplies = multiplies;
    p.narrows = narrows;
    p.measurements = measurements;
    return p;
  }();
  host = table;
  return &provider;
}
