#include "plan/executable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "device/provider_call.h"
#include "runtime/budget.h"
#include "runtime/headroom.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr size_t kMaxIdle = 2;       // frames kept for the next runs
constexpr size_t kMaxOperands = 64;  // more than that go through the heap

template <typename T>
Worst worst_of(const void* data, int64_t n) {
  const T* p = static_cast<const T*>(data);
  Worst worst = Worst::finite;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(p[i])) return Worst::nan;
    if (std::isinf(p[i])) worst = Worst::infinite;
  }
  return worst;
}

/// For a 16-bit float: NaN and infinity have all bits of the exponent set, and the fraction tells
/// them apart.
Worst worst_of_bits(const void* data, int64_t n, uint16_t exponent) {
  const auto* p = static_cast<const uint16_t*>(data);
  Worst worst = Worst::finite;
  for (int64_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<uint16_t>(p[i] & 0x7FFF);
    if (magnitude > exponent) return Worst::nan;
    if (magnitude == exponent) worst = Worst::infinite;
  }
  return worst;
}

Worst worst_of(Value v, const void* data) {
  if (!v || data == nullptr) return Worst::finite;
  const int64_t n = element_count(v.type().dims());
  if (v.dtype() == DType::f32) return worst_of<float>(data, n);
  if (v.dtype() == DType::f64) return worst_of<double>(data, n);
  if (v.dtype() == DType::f16) return worst_of_bits(data, n, 0x7C00);
  if (v.dtype() == DType::bf16) return worst_of_bits(data, n, 0x7F80);
  return Worst::finite;
}

std::byte* address(const Frame& frame, const Place& p) {
  return p.buffer < 0 ? nullptr : frame.base[static_cast<size_t>(p.buffer)] + p.offset;
}

/// The addresses of the operands of one step at a time.
class Operands {
 public:
  void set(const Frame& frame, const Step& step) {
    if (step.inputs.size() > kMaxOperands) more_in_.resize(step.inputs.size());
    if (step.outputs.size() > kMaxOperands) more_out_.resize(step.outputs.size());
    in_ = step.inputs.size() > kMaxOperands ? more_in_.data() : few_in_;
    out_ = step.outputs.size() > kMaxOperands ? more_out_.data() : few_out_;
    for (size_t i = 0; i < step.inputs.size(); ++i) in_[i] = address(frame, step.inputs[i]);
    for (size_t i = 0; i < step.outputs.size(); ++i) out_[i] = address(frame, step.outputs[i]);
  }

  const void** in() const { return in_; }
  void** out() const { return out_; }

 private:
  const void* few_in_[kMaxOperands];
  void* few_out_[kMaxOperands];
  std::vector<const void*> more_in_;
  std::vector<void*> more_out_;
  const void** in_ = few_in_;
  void** out_ = few_out_;
};

void execute(const Devices& devices, const Frame& frame, const Step& step,
             const Operands& operands) {
  // Kernels do pointer arithmetic on scratch even if all its parts are empty.
  alignas(64) std::byte none[64];
  std::byte* const scratch = step.scratch.buffer < 0 ? none : address(frame, step.scratch);
  at_node(step.node, [&] {
    if (step.device == 0)
      return step.kernel->execute(operands.in(), operands.out(), scratch, nullptr);
    const auto d = static_cast<size_t>(step.device) - 1;
    call_provider(devices.others()[d]->provider(), "execute", [&] {
      step.kernel->execute(operands.in(), operands.out(), scratch, frame.streams[d].get());
    });
  });
}

void check_fed(Value v, const void* data) {
  if (worst_of(v, data) != Worst::nan) return;
  throw DataError({.what = "An input or parameter holds NaN.",
                   .node = v.name(),
                   .expected = "numbers",
                   .received = fmt::format("NaN in {}", to_string(v.type())),
                   .remedy = "Look at the data of this step, or go back to an older checkpoint."});
}

std::string shapes_of(Node n) {
  std::string ins, outs;
  for (int i = 0; i < n.output_count(); ++i) {
    if (n.output(i)) outs += (outs.empty() ? "" : ", ") + to_string(n.output(i).type());
  }
  for (int i = 0; i < n.input_count(); ++i) {
    if (n.input(i)) ins += (ins.empty() ? "" : ", ") + to_string(n.input(i).type());
  }
  return outs + " ← " + ins;
}

void add_event(Profiler& profiler, const Step& step, double start) {
  profiler.add({.node = step.node ? step.node.name() : "copy",
                .op = step.node ? step.node.op() : "copy",
                .kernel = std::string(step.candidate),
                .shapes = step.node ? shapes_of(step.node) : "",
                .start_us = start,
                .duration_us = profiler.now_us() - start,
                .flops = step.kernel ? step.kernel->flops() : 0});
}

}  // namespace

Executable::Executable(Plan plan, std::shared_ptr<MemoryPool> pool)
    : plan_(std::move(plan)), pool_(std::move(pool)) {
  idle_->frames.reserve(kMaxIdle);  // reserved here, because release() must not throw
  input_buffer_.assign(plan_.graph->inputs().size(), -1);
  state_buffer_.assign(plan_.graph->states().size(), -1);
  for (size_t b = 0; b < plan_.buffers.size(); ++b) {
    const Buffer& buffer = plan_.buffers[b];
    if (buffer.storage == Storage::input) input_buffer_[buffer.index] = static_cast<int>(b);
    if (buffer.storage == Storage::state) state_buffer_[buffer.index] = static_cast<int>(b);
  }
  look_at_steps();
  copy_constants();
}

/// Finds the steps that write states, and those that read or write the host's memory.
void Executable::look_at_steps() {
  for (const Step& step : plan_.steps) {
    writes_state_.push_back(
        std::any_of(step.outputs.begin(), step.outputs.end(), [&](const Place& p) {
          return p.buffer >= 0 &&
                 plan_.buffers[static_cast<size_t>(p.buffer)].storage == Storage::state;
        }));
  }
  for (const Step& step : plan_.steps) {
    bool reads = false;  // the step reads memory to which a copy may be running
    for (size_t i = 0; step.kernel && i < step.inputs.size(); ++i) {
      if (step.inputs[i].buffer < 0 || !step.kernel->wants_on_host(static_cast<int>(i))) continue;
      const Storage from = plan_.buffers[static_cast<size_t>(step.inputs[i].buffer)].storage;
      reads = reads || from == Storage::arena || from == Storage::output;
    }
    on_host_.push_back(step.device == 0 || reads);
    if (step.device == 0) continue;
    Device& device = *plan_.devices.others()[static_cast<size_t>(step.device) - 1];
    if (pins_ == nullptr && device.copies_pinned()) pins_ = &device;
  }
  first_update_ = static_cast<size_t>(std::find(writes_state_.begin(), writes_state_.end(), true) -
                                      writes_state_.begin());
}

/// Copies constants to the devices that read them.
void Executable::copy_constants() {
  device_constants_.resize(plan_.buffers.size());
  const auto others = plan_.devices.others();
  for (size_t d = 1; d <= others.size(); ++d) {
    Device& device = *others[d - 1];
    const std::shared_ptr<void> stream = device.make_stream();
    for (size_t b = 0; b < plan_.buffers.size(); ++b) {
      const Buffer& buffer = plan_.buffers[b];
      if (buffer.storage != Storage::constant || buffer.device != static_cast<int>(d)) continue;
      device_constants_[b] = device.allocate(buffer.bytes);
      device.copy(device_constants_[b].get(), std::as_const(plan_.constants[buffer.index]).data(),
                  buffer.bytes, STEEP_TO_DEVICE, stream.get());
    }
    device.sync(stream.get());
  }
}

std::unique_ptr<Frame> Executable::acquire() {
  std::unique_ptr<Frame> frame;
  if (const std::lock_guard lock(idle_->mutex); !idle_->frames.empty()) {
    frame = std::move(idle_->frames.back());
    idle_->frames.pop_back();
  }
  if (!frame) {
    frame = std::make_unique<Frame>();
    frame->base.resize(plan_.buffers.size(), nullptr);
    frame->inputs.resize(input_buffer_.size());
    frame->outputs.resize(plan_.output_buffers.size());
    for (size_t b = 0; b < plan_.buffers.size(); ++b) {
      const Buffer& buffer = plan_.buffers[b];
      if (buffer.storage != Storage::constant) continue;
      // Constants are only read; the cast keeps one type for the whole table.
      frame->base[b] = static_cast<std::byte*>(
          buffer.device != 0
              ? device_constants_[b].get()
              : const_cast<void*>(std::as_const(plan_.constants[buffer.index]).data()));
    }
  }
  if (!frame->arena) bind_arenas(*frame);
  return frame;
}

void Executable::bind_arenas(Frame& frame) {
  std::vector<std::byte*> begins;
  const auto others = plan_.devices.others();
  for (size_t d = frame.streams.size(); d < others.size(); ++d) {
    frame.device_arenas.push_back(others[d]->allocate(plan_.device_arena_bytes[d]));
    frame.streams.push_back(others[d]->make_stream());
    frame.crossing.push_back(false);
  }
  frame.arena = pins_ != nullptr ? pins_->allocate_pinned(std::max<size_t>(plan_.arena_bytes, 1))
                                 : pool_->allocate(plan_.arena_bytes);
  begins.push_back(static_cast<std::byte*>(frame.arena.get()));
  for (const auto& arena : frame.device_arenas)
    begins.push_back(static_cast<std::byte*>(arena.get()));
  for (size_t b = 0; b < plan_.buffers.size(); ++b) {
    const Buffer& buffer = plan_.buffers[b];
    if (buffer.storage == Storage::arena)
      frame.base[b] = begins[static_cast<size_t>(buffer.device)] + buffer.offset;
  }
}

void Executable::release(std::unique_ptr<Frame> frame) {
  for (Tensor& t : frame->inputs) t = Tensor();
  for (auto& o : frame->outputs) o.reset();
  // Small arenas stay with their frame, and so do pinned ones, which are expensive to make. Large
  // ones are released, so that other shapes can use the memory.
  constexpr size_t kKeep = size_t{1} << 20;
  if (plan_.arena_bytes > kKeep && pins_ == nullptr) frame->arena.reset();
  const std::lock_guard lock(idle_->mutex);
  if (idle_->frames.size() < kMaxIdle) idle_->frames.push_back(std::move(frame));
}

void Executable::forget_frames() {
  std::vector<std::unique_ptr<Frame>> frames;
  frames.reserve(kMaxIdle);  // for those that are released from now on
  const std::lock_guard lock(idle_->mutex);
  frames.swap(idle_->frames);
}

void Executable::bind_input(Frame& frame, size_t index, const Tensor& tensor) const {
  frame.inputs[index] = tensor;
  frame.base[static_cast<size_t>(input_buffer_[index])] =
      static_cast<std::byte*>(const_cast<void*>(tensor.data()));
}

void Executable::bind_state(Frame& frame, size_t index, void* data) const {
  frame.base[static_cast<size_t>(state_buffer_[index])] = static_cast<std::byte*>(data);
}

void Executable::allocate_outputs(Frame& frame, Phase phase) const {
  for (uint32_t b : plan_.output_buffers) {
    const Buffer& buffer = plan_.buffers[b];
    if (buffer.phase != phase) continue;
    frame.outputs[buffer.index] = pool_->allocate(buffer.bytes);
    frame.base[b] = static_cast<std::byte*>(frame.outputs[buffer.index].get());
  }
}

std::vector<Tensor> Executable::outputs_of(const Frame& frame, Phase phase) const {
  std::vector<Tensor> outputs;
  for (const PlannedOutput& o : plan_.outputs) {
    if (o.phase != phase) continue;
    const Buffer& buffer = plan_.buffers[static_cast<size_t>(o.place.buffer)];
    std::byte* data = frame.base[static_cast<size_t>(o.place.buffer)] + o.place.offset;
    outputs.push_back(Tensor::wrap(o.dtype, o.dims, data, frame.outputs[buffer.index]));
  }
  return outputs;
}

/// Throws DataError for an input or a state that has NaN.
void Executable::check_all_fed(const Frame& frame) const {
  for (size_t i = 0; i < input_buffer_.size(); ++i) {
    const Value v = plan_.graph->inputs()[i];
    if (frame.inputs[i].defined()) check_fed(v, std::as_const(frame.inputs[i]).data());
  }
  for (size_t i = 0; i < state_buffer_.size(); ++i) {
    if (state_buffer_[i] < 0) continue;
    check_fed(plan_.graph->states()[i], frame.base[static_cast<size_t>(state_buffer_[i])]);
  }
}

/// Runs run_steps(), and waits for all devices.
void Executable::run_on_devices(Frame& frame, size_t begin, size_t end,
                                const RunOptions& options) const {
  try {
    run_steps(frame, begin, end, options);
    sync(frame);
  } catch (...) {
    // Enqueued work still reads and writes this memory, so wait for it.
    for (size_t d = 0; d < frame.streams.size(); ++d) {
      try {
        plan_.devices.others()[d]->sync(frame.streams[d].get());
      } catch (const Error&) {  // the caller gets the first error
        continue;
      }
    }
    frame.crossing.assign(frame.crossing.size(), false);
    throw;
  }
}

std::vector<Tensor> Executable::run(Frame& frame, Phase phase, const RunOptions& options) const {
  const bool forward = phase == Phase::forward;
  const size_t begin = forward ? 0 : plan_.backward_begin;
  const size_t end = forward ? plan_.backward_begin : plan_.steps.size();
  // Before the first kernel, because no allocation may fail once weights change.
  allocate_outputs(frame, phase);
  std::vector<Tensor> outputs = outputs_of(frame, phase);
  if (options.check_finite && forward) check_all_fed(frame);
  if (plan_.devices.only_host()) {
    run_steps(frame, begin, end, options);
  } else {
    run_on_devices(frame, begin, end, options);
  }
  // A result that backward does not read belongs to the caller alone. It is freed when the caller
  // drops it, often before backward, when memory is scarcest.
  for (uint32_t b : plan_.output_buffers) {
    const Buffer& buffer = plan_.buffers[b];
    if (buffer.last < static_cast<int>(end)) frame.outputs[buffer.index].reset();
  }
  return outputs;
}

void Executable::run_steps(Frame& frame, size_t begin, size_t end,
                           const RunOptions& options) const {
  // OpenMP ends threads if a region has fewer, and starts them again for the next one; libraries
  // compile code at their first run. Both need memory.
  require_headroom(kHeadroom);
  Operands operands;
  std::optional<Uninterrupted> finishing;
  for (size_t s = begin; s < end; ++s) {
    const Step& step = plan_.steps[s];
    poll();
    // Another device may still read the state, and its errors must show before anything changes.
    if (writes_state_[s] && !plan_.devices.only_host()) sync(frame);
    if (on_host_[s]) wait_for_copies(frame);
    // After the first state has changed, the updates of all states must run.
    if (s == first_update_) {
      if (options.wrote_states != nullptr) *options.wrote_states = true;
      finishing.emplace();
    }
    operands.set(frame, step);
    const double start = options.profiler != nullptr ? options.profiler->now_us() : 0;
    const Worst worst =
        options.check_finite ? worst_input(frame, step, operands.in()) : Worst::finite;
    if (step.kernel && !step.empty) {
      execute(plan_.devices, frame, step, operands);
    } else if (step.copy_bytes > 0 && step.device != 0) {
      cross(frame, step, operands.out()[0], operands.in()[0]);
      if (options.check_finite) wait_for_copies(frame);
    } else if (step.copy_bytes > 0) {
      std::memcpy(operands.out()[0], operands.in()[0], step.copy_bytes);
    }
    if (options.check_finite) check_outputs(frame, step, worst, operands.out());
    if (options.profiler != nullptr) add_event(*options.profiler, step, start);
  }
}

/// Enqueues a copy. The host waits for it before it next reads or writes its own memory; other
/// devices wait before they copy from or to that memory. A copy to a device from an input, a
/// constant or a state needs no wait: inputs and constants do not change, and steps that overwrite
/// a state wait themselves.
void Executable::cross(Frame& frame, const Step& step, void* to, const void* from) const {
  const auto others = plan_.devices.others();
  const auto d = static_cast<size_t>(step.device) - 1;
  const SteepStream stream = frame.streams[d].get();
  for (size_t e = 0; e < others.size(); ++e) {
    if (e != d && frame.crossing[e]) others[d]->wait(stream, *others[e], frame.streams[e].get());
  }
  const bool there = plan_.buffers[static_cast<size_t>(step.outputs[0].buffer)].device != 0;
  others[d]->copy(to, from, step.copy_bytes, there ? STEEP_TO_DEVICE : STEEP_TO_HOST, stream);
  const Storage source = plan_.buffers[static_cast<size_t>(step.inputs[0].buffer)].storage;
  const bool stays =
      source == Storage::input || source == Storage::constant || source == Storage::state;
  if (!there || !stays) frame.crossing[d] = true;
}

void Executable::wait_for_copies(Frame& frame) const {
  for (size_t d = 0; d < frame.crossing.size(); ++d) {
    if (!frame.crossing[d]) continue;
    plan_.devices.others()[d]->sync(frame.streams[d].get());
    frame.crossing[d] = false;
  }
}

void Executable::sync(Frame& frame) const {
  for (size_t d = 0; d < frame.streams.size(); ++d) {
    plan_.devices.others()[d]->sync(frame.streams[d].get());
    frame.crossing[d] = false;
  }
}

/// Like worst_of(), for a value that may be in the memory of the step's device: it is copied to the
/// host.
Worst Executable::worst_there(const Frame& frame, const Step& step, Value v,
                              const void* data) const {
  if (!v || !is_float(v.dtype()) || data == nullptr) return Worst::finite;
  const size_t bytes = v.type().nbytes();
  std::vector<std::byte> here(bytes);
  const auto d = static_cast<size_t>(step.device) - 1;
  const Device& device = *plan_.devices.others()[d];
  device.copy(here.data(), data, bytes, STEEP_TO_HOST, frame.streams[d].get());
  device.sync(frame.streams[d].get());
  return worst_of(v, here.data());
}

/// The worst of all operands. Call it before the kernel runs, which may overwrite them.
Worst Executable::worst_input(const Frame& frame, const Step& step, const void* const* in) const {
  Worst worst = Worst::finite;
  for (int i = 0; step.node && i < step.node.input_count(); ++i) {
    const int b = step.inputs[static_cast<size_t>(i)].buffer;
    const bool there = b >= 0 && plan_.buffers[static_cast<size_t>(b)].device != 0;
    worst = std::max(worst, there ? worst_there(frame, step, step.node.input(i), in[i])
                                  : worst_of(step.node.input(i), in[i]));
  }
  return worst;
}

/// Throws if an output is worse than all operands: infinite from finite ones, or NaN from numbers.
void Executable::check_outputs(const Frame& frame, const Step& step, Worst operands,
                               void* const* out) const {
  for (int i = 0; step.node && i < step.node.output_count(); ++i) {
    Value y = step.node.output(i);
    const int b = step.outputs[static_cast<size_t>(i)].buffer;
    const bool there = b >= 0 && plan_.buffers[static_cast<size_t>(b)].device != 0;
    const Worst worst = there ? worst_there(frame, step, y, out[i]) : worst_of(y, out[i]);
    if (worst <= operands) continue;
    throw DataError(
        {.what = "A value is not finite (NaN or infinity); this is the first node that made one.",
         .node = step.node.name(),
         .op = step.node.op(),
         .expected = "finite values",
         .received = fmt::format("{} in {} {}", worst == Worst::nan ? "NaN" : "infinity",
                                 to_string(y.type()), y.name()),
         .remedy = "Lower the learning rate, clip gradients, or look at the data of this step."});
  }
}

bool Executable::backward_reads_input(size_t index) const {
  const int b = input_buffer_[index];
  if (b < 0) return false;
  return plan_.buffers[static_cast<size_t>(b)].last >= static_cast<int>(plan_.backward_begin);
}

std::vector<bool> Executable::read_by_backward() const {
  std::vector<bool> read;
  for (const PlannedOutput& o : plan_.outputs) {
    if (o.phase != Phase::forward) continue;
    const Buffer& buffer = plan_.buffers[static_cast<size_t>(o.place.buffer)];
    read.push_back(buffer.last >= static_cast<int>(plan_.backward_begin));
  }
  return read;
}

}  // namespace steep
