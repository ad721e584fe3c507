#include "providers/cpu/elementwise.h"

#include <algorithm>
#include <cstring>

#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

constexpr size_t kFileBytes = size_t{64} << 10;  // the register file, on each thread's stack
constexpr size_t kCacheBytes = size_t{24}
                               << 10;  // what of it should be in use: half of the first-level cache
constexpr int64_t kGrainCost = int64_t{256}
                               << 10;  // about 20 us: less is not worth a second thread

template <typename T>
const LoopTable<T>& loops();
template <>
const LoopTable<float>& loops<float>() {
  return float_loops();
}
template <>
const LoopTable<double>& loops<double>() {
  return double_loops();
}
template <>
const LoopTable<int64_t>& loops<int64_t>() {
  return int_loops();
}
template <>
const LoopTable<uint64_t>& loops<uint64_t>() {
  return uint_loops();
}

/// The approximate number of simple operations per element.
int64_t cost_of(Code code) {
  if (code >= Code::sqrt && code <= Code::atanh) return 10;
  if (code >= Code::sigmoid && code <= Code::gelu_tanh_grad && code != Code::relu) return 10;
  if (code == Code::pow || code == Code::mod || code == Code::fmod) return 30;
  if (code == Code::dropout || code == Code::dropout_mask) return 6;
  return code == Code::div ? 3 : 1;
}

/// Writes `rows` rows of `width` elements: row r has the element, or the elements, at from + r
/// step. kWidth: the width, if it is known; a row is then a few instructions.
template <int64_t kWidth, typename T>
void broadcast_rows(const T* from, int64_t step, bool repeats, int64_t rows, int64_t width, T* to) {
  if constexpr (kWidth > 0) width = kWidth;
  for (int64_t r = 0; r < rows; ++r, from += step, to += width) {
    if (repeats) {
      const T x = *from;
      for (int64_t i = 0; i < width; ++i) to[i] = x;
    } else {
      for (int64_t i = 0; i < width; ++i) to[i] = from[i];
    }
  }
}

/// The widths of which rows take longer to find than to write.
template <typename T>
void (*find_broadcast_rows(int64_t width))(const T*, int64_t, bool, int64_t, int64_t, T*) {
  switch (width) {
    case 2: return broadcast_rows<2, T>;
    case 4: return broadcast_rows<4, T>;
    case 8: return broadcast_rows<8, T>;
    case 16: return broadcast_rows<16, T>;
    case 32: return broadcast_rows<32, T>;
    default: return width < 64 ? broadcast_rows<0, T> : nullptr;
  }
}

template <typename T>
class Elementwise final : public Kernel {
  using Kind = Program::Load::Kind;

 public:
  Elementwise(Program program, NodeId id) : program_(std::move(program)), id_(std::move(id)) {
    may_share = program_.may_share;
    const size_t slots = std::max<size_t>(static_cast<size_t>(program_.slot_count), 1);
    const size_t elements = kCacheBytes / sizeof(T) / slots / 64 * 64;
    block_ = static_cast<int64_t>(std::clamp<size_t>(elements, 128, 2048));
    int64_t cost = 0;
    for (const auto& i : program_.instructions) {
      cost += cost_of(i.code) * (sizeof(T) == 4 ? 1 : 3);
      loops_.push_back(loops<T>()[static_cast<size_t>(i.code)]);
    }
    for (const auto& l : program_.loads) {
      cost += 1;
      convert_.push_back(find_convert(l.dtype, program_.type));
    }
    for (const auto& s : program_.stores) {
      cost += 1;
      store_.push_back(find_convert(program_.type, s.dtype));
    }
    grain_ = grain_of(kGrainCost, cost * block_);
  }

  /// The first code for which the element type has no loop, or `count`.
  Code missing() const {
    for (size_t i = 0; i < loops_.size(); ++i) {
      const Code code = program_.instructions[i].code;
      const bool random = code == Code::dropout || code == Code::dropout_mask;
      if (loops_[i] == nullptr && !random) return code;
    }
    return Code::count;
  }

  void execute(const KernelArgs& args) const override {
    const int64_t blocks = (program_.size + block_ - 1) / block_;
    if (program_.may_fault) attempt(args, blocks);
    parallel_for(blocks, grain_, [&](int64_t begin, int64_t end) { run(args, begin, end, true); });
  }

 private:
  /// Runs without stores first, so that a fault leaves the outputs unchanged.
  void attempt(const KernelArgs& args, int64_t blocks) const {
    try {
      parallel_for(blocks, grain_,
                   [&](int64_t begin, int64_t end) { run(args, begin, end, false); });
    } catch (const IntegerFault& fault) {
      id_.data_error("An integer division has no result.",
                     "a divisor other than 0, and a quotient that fits",
                     fmt::format("{} divided by {}", fault.dividend, fault.divisor));
    }
  }

  void run(const KernelArgs& args, int64_t begin, int64_t end, bool storing) const {
    alignas(64) T file[kFileBytes / sizeof(T)];
    T* value[kMaxValues];
    for (size_t v = 0; v < program_.slots.size(); ++v) {
      value[v] = program_.slots[v] < 0 ? nullptr : file + program_.slots[v] * block_;
    }
    for (size_t i = 0; i < program_.loads.size(); ++i) {
      const auto& load = program_.loads[i];
      if (load.kind != Kind::scalar) continue;
      T x;
      convert_[i](source(load, args), &x, 1);
      std::fill_n(value[load.value], std::min(block_, program_.size), x);
    }
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * block_;
      const int64_t n = std::min(block_, program_.size - first);
      load_block(args, first, n, value, file);
      for (const auto& s : program_.stores) {
        if (s.direct) value[s.value] = args.output<T>(s.output) + first;
      }
      for (size_t i = 0; i < program_.instructions.size(); ++i) {
        const auto& ins = program_.instructions[i];
        if (loops_[i] != nullptr) {
          loops_[i](value[ins.dst], value[ins.a], value[ins.b], value[ins.c], n, ins.params);
        } else if constexpr (std::is_floating_point_v<T>) {
          dropout(ins.dropout, args.input<int64_t>(ins.seed_input), first,
                  ins.code == Code::dropout ? value[ins.a] : nullptr, value[ins.dst], n);
        }
      }
      if (!storing) continue;
      for (size_t i = 0; i < program_.stores.size(); ++i) {
        const auto& s = program_.stores[i];
        if (s.direct) continue;
        store_[i](value[s.value],
                  args.output<char>(s.output) + first * static_cast<int64_t>(size_of(s.dtype)), n);
      }
    }
  }

  static const char* source(const Program::Load& load, const KernelArgs& args) {
    return load.constant.defined() ? static_cast<const char*>(load.constant.data())
                                   : args.input<char>(load.input);
  }

  void load_block(const KernelArgs& args, int64_t first, int64_t n, T** value, T* file) const {
    for (size_t i = 0; i < program_.loads.size(); ++i) {
      const auto& load = program_.loads[i];
      const char* src = source(load, args);
      switch (load.kind) {
        case Kind::direct:
          // Never written through: instructions only write to slots and outputs.
          value[load.value] = const_cast<T*>(reinterpret_cast<const T*>(src)) + first;
          break;
        case Kind::convert:
          convert_[i](src + first * static_cast<int64_t>(size_of(load.dtype)), value[load.value],
                      n);
          break;
        case Kind::broadcast:
          value[load.value] = load_broadcast(load, convert_[i], src, first, n,
                                             file + program_.slots[load.value] * block_);
          break;
        case Kind::scalar: break;
      }
    }
  }

  /// Elements [first, first + n) of the operand, broadcast to the output: in place where they are
  /// adjacent, otherwise copied to `dst`.
  T* load_broadcast(const Program::Load& load, Convert convert, const char* src, int64_t first,
                    int64_t n, T* dst) const {
    const size_t rank = load.dims.size();
    const auto bytes = static_cast<int64_t>(size_of(load.dtype));
    int64_t index[16];
    int64_t offset = 0;
    int64_t rest = first;
    for (size_t a = rank; a-- > 0;) {
      index[a] = rest % load.dims[a];
      rest /= load.dims[a];
      offset += index[a] * load.strides[a];
    }
    const size_t inner = rank - 1;
    const bool repeats = load.strides[inner] == 0;
    const bool same = load.dtype == program_.type;
    const int64_t width = load.dims[inner];
    const auto short_rows = same && inner > 0 ? find_broadcast_rows<T>(width) : nullptr;
    for (int64_t position = 0; position < n;) {
      int64_t take = std::min(width - index[inner], n - position);
      const char* from = src + offset * bytes;
      if (short_rows != nullptr && take == width) {
        const int64_t above = load.dims[inner - 1] - index[inner - 1];
        const int64_t rows = std::min(above, (n - position) / width);
        const int64_t step = load.strides[inner - 1];
        short_rows(reinterpret_cast<const T*>(from), step, repeats, rows, width, dst + position);
        // the last of these rows goes on below
        take = rows * width;
        offset += (rows - 1) * step;
        index[inner - 1] += rows - 1;
      } else if (repeats) {
        T x;
        convert(from, &x, 1);
        std::fill_n(dst + position, take, x);
      } else if (same) {
        if (take == n) return const_cast<T*>(reinterpret_cast<const T*>(from));
        std::memcpy(dst + position, from, static_cast<size_t>(take) * sizeof(T));
      } else {
        convert(from, dst + position, take);
      }
      position += take;
      offset += (width - index[inner]) * load.strides[inner];
      index[inner] = width;  // a partial step occurs only at the end
      for (size_t a = inner; index[a] == load.dims[a] && a > 0; --a) {
        offset += load.strides[a - 1] - load.dims[a] * load.strides[a];
        index[a] = 0;
        ++index[a - 1];
      }
    }
    return dst;
  }

  Program program_;
  NodeId id_;
  int64_t block_ = 0;  // elements per value
  int64_t grain_ = 1;  // in blocks
  std::vector<Loop<T>> loops_{};
  std::vector<Convert> convert_{};
  std::vector<Convert> store_{};
};

template <typename T>
std::unique_ptr<Kernel> finish(Program program, const NodeSpec& node, std::string* why_not) {
  auto kernel = std::make_unique<Elementwise<T>>(std::move(program), NodeId(node));
  if (kernel->missing() != Code::count) {
    return decline(why_not, "{} has no such operation",
                   node.op == "steep.Fused" ? "a dtype of the body" : "the dtype");
  }
  return kernel;
}

std::unique_ptr<Kernel> make_elementwise(const NodeSpec& node, std::string* why_not) {
  auto program = build_program(node, why_not);
  if (!program) return nullptr;
  if (program->type == DType::f32) return finish<float>(std::move(*program), node, why_not);
  if (program->type == DType::f64) return finish<double>(std::move(*program), node, why_not);
  if (program->type == DType::u64) return finish<uint64_t>(std::move(*program), node, why_not);
  return finish<int64_t>(std::move(*program), node, why_not);
}

}  // namespace

void register_elementwise(std::vector<Candidate>& list) {
  for (std::string_view op : elementwise_ops()) {
    // These have faster kernels of their own; the engine supports them only in bodies.
    if (op == "Identity" || op.starts_with("Cast")) continue;
    list.push_back({op, "elementwise", make_elementwise});
  }
}

}  // namespace steep::cpu
