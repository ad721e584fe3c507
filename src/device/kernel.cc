#include "device/kernel.h"

#include <fmt/format.h>

#include <tuple>

#include "device/boundary.h"
#include "device/device.h"
#include "device/provider_call.h"
#include "ops/op_def.h"
#include "runtime/headroom.h"
#include "steep/error.h"

namespace steep {
namespace {

const Operand kAbsent;

/// The name under which devices register kernels for the node.
std::string_view kernel_name(Node n) {
  const OpDef* def = find_op(n.op());
  if (def == nullptr || def->kernel_attribute.empty()) return n.op();
  const Attr* name = n.attrs().find(def->kernel_attribute);
  return name != nullptr ? std::string_view(std::get<std::string>(*name)) : n.op();
}

}  // namespace

const Operand& NodeSpec::in(size_t i) const { return i < inputs.size() ? inputs[i] : kAbsent; }
const Operand& NodeSpec::out(size_t i) const { return i < outputs.size() ? outputs[i] : kAbsent; }

NodeSpec spec_of(Node n) {
  NodeSpec spec{
      .name = n.name(), .op = kernel_name(n), .attrs = n.attrs(), .inputs = {}, .outputs = {}};
  auto operand = [&](Value v) {
    if (!v) return Operand{};
    if (!v.type().concrete()) {
      throw InternalError({.what = "A node was planned before its types were known.",
                           .node = n.name(),
                           .op = n.op(),
                           .received = to_string(v.type()) + " " + v.name()});
    }
    return Operand{v.dtype(), v.type().dims(), v.role() == Role::constant ? v.tensor() : nullptr};
  };
  for (int i = 0; i < n.input_count(); ++i) spec.inputs.push_back(operand(n.input(i)));
  for (int i = 0; i < n.output_count(); ++i) spec.outputs.push_back(operand(n.output(i)));
  return spec;
}

ProviderKernel::ProviderKernel(const SteepKernel& raw) : raw_(raw) {
  for (size_t i = 0; i < raw.may_share_count; ++i)
    may_share_.emplace_back(raw.may_share[i][0], raw.may_share[i][1]);
}

ProviderKernel::~ProviderKernel() {
  if (raw_.destroy != nullptr) end_quietly([&] { raw_.destroy(raw_.self); });
}

void ProviderKernel::fail(SteepError* error) { throw_error(error); }

namespace {

/// Throws ProviderError if a kernel that a provider made is not valid.
void require_whole(const Device& device, const NodeSpec& node, const SteepKernel& table) {
  constexpr int32_t kMost = 4096;
  bool whole =
      table.execute != nullptr && (table.may_share != nullptr || table.may_share_count == 0);
  for (size_t i = 0; whole && i < table.may_share_count; ++i) {
    const auto [in, out] = table.may_share[i];
    whole = in >= 0 && in < kMost && out >= 0 && out < kMost;
  }
  if (whole) return;
  throw ProviderError({.what = "A provider made a kernel that cannot run.",
                       .node = std::string(node.name),
                       .op = std::string(node.op),
                       .expected = "`execute`, and pairs of operands that are there in `may_share`",
                       .received = "a kernel of " + std::string(device.provider()) + " without",
                       .remedy = "Ask the plug-in's author."});
}

}  // namespace

ChosenKernel choose_kernel(const Device& device, const NodeSpec& node, std::string* why_not) {
  const Candidates candidates = device.candidates(node.op);
  std::string reasons;
  const NodeView view(node);
  for (size_t i = 0; i < candidates.size(); ++i) {
    const SteepCandidate& c = candidates[i];
    char reason[512] = "";
    SteepKernel raw{};
    raw.size = sizeof(raw);
    SteepError* error = nullptr;
    require_headroom(kHeadroom);  // compiling libraries may end the process otherwise
    const int status = call_provider(device.provider(), "make", [&] {
      return c.make(&c, device.handle(), view.get(), &raw, reason, sizeof(reason), &error);
    });
    if (error != nullptr) throw_error(error);
    if (status != 0) {
      // Destroys the kernel if the allocation of its owner fails.
      auto destroy = [](SteepKernel* k) {
        if (k->destroy != nullptr) end_quietly([&] { k->destroy(k->self); });
      };
      std::unique_ptr<SteepKernel, decltype(destroy)> unowned(&raw, destroy);
      require_whole(device, node, raw);
      ChosenKernel choice{std::make_unique<ProviderKernel>(raw), c.name};
      std::ignore = unowned.release();
      return choice;
    }
    reason[sizeof(reason) - 1] = 0;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", c.name, as_utf8(reason));
  }
  if (candidates.empty())
    reasons = fmt::format("the {} provider has no kernel for it", device.provider());
  if (why_not != nullptr) *why_not = reasons;
  return {};
}

std::vector<Tensor> run_node(const Device& host, Node n, std::span<const Tensor> inputs) {
  std::string why_not;
  const ChosenKernel choice = choose_kernel(host, spec_of(n), &why_not);
  if (!choice.kernel) {
    throw ProviderError(
        {.what = "No kernel can run a node.", .node = n.name(), .op = n.op(), .received = why_not});
  }
  std::vector<Tensor> outputs;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const Tensor& t : inputs) in.push_back(t.data());
  for (int i = 0; i < n.output_count(); ++i) {
    const Value y = n.output(i);
    outputs.push_back(y ? Tensor::zeros(y.dtype(), y.type().dims()) : Tensor());
    out.push_back(outputs.back().data());
  }
  Tensor scratch = Tensor::empty(DType::u8, {static_cast<int64_t>(choice.kernel->scratch_bytes())});
  choice.kernel->execute(in.data(), out.data(), scratch.data());
  return outputs;
}

std::vector<Tensor> run_data_shaped(const Device& host, Node n, std::span<const Tensor> inputs) {
  NodeSpec spec{.name = n.name(), .op = n.op(), .attrs = n.attrs(), .inputs = {}, .outputs = {}};
  for (const Tensor& t : inputs) {
    spec.inputs.push_back({t.dtype(), t.dims(), t.defined() ? &t : nullptr});
  }
  for (int i = 0; i < n.output_count(); ++i) {
    spec.outputs.push_back({n.output(i) ? n.output(i).dtype() : DType::undefined});
  }
  NodeView view(spec);
  const SteepDataShaped compute = host.data_shaped(n.op());
  call_provider(host.provider(), "a data-shaped kernel", [&] {
    if (SteepError* error = compute(host.handle(), view.get())) throw_error(error);
  });
  return view.take_outputs();
}

}  // namespace steep
