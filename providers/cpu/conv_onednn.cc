// Convolutions and their gradients by oneDNN, in the blocked layouts that oneDNN prefers: operands
// are reordered to these layouts, and results back, through scratch. If operands may be bfloat16,
// the reorder converts them; the rest of the graph is not affected.

#include <array>
#include <cstddef>

#include "providers/cpu/choice.h"
#include "providers/cpu/conv.h"
#include "providers/cpu/onednn.h"

namespace steep::cpu {
namespace {

using DataType = dnnl::memory::data_type;
using Desc = dnnl::memory::desc;
using Forward = dnnl::convolution_forward;

Desc plain(const ConvProblem& p, const Dims& dims) {
  return onednn_desc(p.dtype, dims, row_major_strides(dims));
}

Desc any(const Desc& desc, DataType type) {
  return {desc.get_dims(), type, dnnl::memory::format_tag::any};
}

template <typename PrimitiveDesc>
bool is_gemm(const PrimitiveDesc& pd) {
  return std::string_view(pd.impl_info_str()).find("gemm") != std::string_view::npos;
}

/// The gradient of x over time with a wide dilation d, as one over a plane without: positions
/// t = q d + r are row q and column r, where they lie, and a window reads one column. oneDNN takes
/// 0.9 ms for [8, 96, 512] with d = 32, and 0.5 ms for the plane; for narrow windows, for y and for
/// the gradient of w the plane takes longer.
ConvProblem without_dilation(ConvProblem p) {
  constexpr int64_t kWide = 16;
  if (p.part != ConvPart::grad_input || p.axes.size() != 1) return p;
  const WindowAxis time = p.axes[0];
  const int64_t d = time.dilation;
  const bool divides = time.in % d == 0 && time.out % d == 0 && time.pad_begin % d == 0;
  if (d == 1 || time.reach() <= kWide || time.stride != 1 || !divides) return p;
  const WindowAxis rows{.in = time.in / d,
                        .out = time.out / d,
                        .kernel = time.kernel,
                        .pad_begin = time.pad_begin / d,
                        .pad_end = time.pad_end / d};
  p.axes = {rows, {.in = d, .out = d}};
  p.x = {p.x[0], p.x[1], rows.in, d};
  p.w.push_back(1);
  p.y = {p.y[0], p.y[1], rows.out, d};
  return p;
}

class OneDnnConv final : public Kernel {
 public:
  /// Throws dnnl::error when oneDNN has no such primitive.
  explicit OneDnnConv(const ConvProblem& p) : p_(without_dilation(p)) {
    flops = 2.0 * static_cast<double>(p_.multiplications());
    Dims w = p_.w;
    if (p_.groups > 1) {
      w[0] /= p_.groups;
      w.insert(w.begin(), p_.groups);
    }
    const std::array<Desc, 3> descs = {plain(p_, p_.x), plain(p_, w), plain(p_, p_.y)};
    const Desc &x = descs[0], &weight = descs[1], &y = descs[2];
    const Desc bias = p_.bias ? plain(p_, {p_.w[0]}) : Desc();
    Dims strides, dilations, begin, end;
    for (const WindowAxis& a : p_.axes) {
      strides.push_back(a.stride);
      dilations.push_back(a.dilation - 1);
      begin.push_back(a.pad_begin);
      // oneDNN needs the last window to end where the padding ends.
      end.push_back((a.out - 1) * a.stride + a.reach() - a.in - a.pad_begin);
    }
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const auto& engine = onednn_engine();
    const auto direct = dnnl::algorithm::convolution_direct;
    const bool forwards = p_.part == ConvPart::forward;
    const bool grad_x = p_.part == ConvPart::grad_input, grad_w = p_.part == ConvPart::grad_weight;
    // Only operands may be narrow, not results.
    const DataType wide = x.get_data_type(), operand_type = p_.bf16 ? DataType::bf16 : wide;
    const Desc any_x = any(x, grad_x ? wide : operand_type),
               any_w = any(weight, grad_w ? wide : operand_type);
    const Desc any_y = any(y, forwards ? wide : operand_type);
    // Gradients need a forward descriptor as hint, with the types of their operands.
    const Forward::primitive_desc forward(
        engine, forwards ? dnnl::prop_kind::forward_inference : dnnl::prop_kind::forward_training,
        direct, any(x, operand_type), any(weight, operand_type), bias, any_y, strides, dilations,
        begin, end, attr);
    if (forwards) {
      finish(forward, descs, forward.src_desc(), forward.weights_desc(), forward.dst_desc());
      primitive_ = Forward(forward);
    } else if (grad_x) {
      const dnnl::convolution_backward_data::primitive_desc pd(
          engine, direct, any_x, any_w, any_y, strides, dilations, begin, end, forward, attr);
      finish(pd, descs, pd.diff_src_desc(), pd.weights_desc(), pd.diff_dst_desc());
      primitive_ = dnnl::convolution_backward_data(pd);
    } else {
      const dnnl::convolution_backward_weights::primitive_desc pd(
          engine, direct, any_x, any_w, any_y, strides, dilations, begin, end, forward, attr);
      finish(pd, descs, pd.src_desc(), pd.diff_weights_desc(), pd.diff_dst_desc());
      primitive_ = dnnl::convolution_backward_weights(pd);
    }
  }

  /// False when oneDNN has only its reference loops for the problem, or loops that are slower than
  /// ours.
  bool fast() const { return fast_; }

  void execute(const KernelArgs& args) const override try {
    auto* scratch = static_cast<std::byte*>(args.scratch);
    dnnl::stream& stream = onednn_stream();
    std::array<dnnl::memory, 3> memories;
    std::vector<std::pair<int, dnnl::memory>> list;
    for (size_t i = 0; i < 3; ++i) {
      const Side& side = sides_[i];
      const void* data = side.input < 0 ? args.out[0] : args.in[side.input];
      dnnl::memory outside = onednn_memory(side.desc, data);
      memories[i] = outside;
      if (side.move) {
        memories[i] = onednn_memory(side.own, scratch + side.offset);
        if (side.input >= 0) side.move.execute(stream, outside, memories[i]);
      }
      list.emplace_back(side.argument, memories[i]);
    }
    if (p_.bias) list.emplace_back(DNNL_ARG_BIAS, onednn_memory(plain(p_, {p_.w[0]}), args.in[2]));
    if (scratchpad_.get_size() > 0) {
      list.emplace_back(DNNL_ARG_SCRATCHPAD, onednn_memory(scratchpad_, scratch + scratchpad_at_));
    }
    primitive_.execute(stream, {list.begin(), list.end()});
    for (size_t i = 0; i < 3; ++i) {
      const Side& side = sides_[i];
      if (side.input >= 0 || !side.move) continue;
      dnnl::memory outside = onednn_memory(side.desc, args.out[0]);
      side.move.execute(stream, memories[i], outside);
    }
  } catch (const dnnl::error& error) {
    throw_onednn(error, "Conv");
  }

 private:
  /// The array x, weight or y.
  struct Side {
    Desc desc, own;
    int input = -1;  ///< index of the node's input; -1: output
    int argument = 0;
    size_t offset = 0;
    dnnl::reorder move{};  ///< empty when the layout needs no change
  };

  size_t take(size_t bytes) {
    const size_t at = scratch_bytes;
    scratch_bytes += whole_lines(bytes);
    return at;
  }

  template <typename PrimitiveDesc>
  void finish(const PrimitiveDesc& pd, const std::array<Desc, 3>& descs, const Desc& x,
              const Desc& weight, const Desc& y) {
    fast_ = is_fast(pd) && !(has_depthwise_gradient(p_) && is_gemm(pd));
    const bool forward = p_.part == ConvPart::forward;
    const bool grad_x = p_.part == ConvPart::grad_input, grad_w = p_.part == ConvPart::grad_weight;
    sides_[0] = {descs[0], x,
                 forward  ? 0
                 : grad_x ? -1
                          : 1,
                 grad_x ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC};
    sides_[1] = {descs[1], weight, grad_w ? -1 : 1,
                 grad_w ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS};
    sides_[2] = {descs[2], y, forward ? -1 : 0, forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST};
    for (Side& side : sides_) {
      if (side.own == side.desc) continue;
      side.offset = take(side.own.get_size());
      const bool in = side.input >= 0;
      const auto& engine = onednn_engine();
      side.move = dnnl::reorder(dnnl::reorder::primitive_desc(engine, in ? side.desc : side.own,
                                                              engine, in ? side.own : side.desc));
    }
    scratchpad_ = pd.scratchpad_desc();
    scratchpad_at_ = take(scratchpad_.get_size());
  }

  ConvProblem p_;
  std::array<Side, 3> sides_;
  dnnl::primitive primitive_;
  Desc scratchpad_;
  size_t scratchpad_at_ = 0;
  bool fast_ = true;
};

}  // namespace

std::unique_ptr<Kernel> make_onednn_conv(const ConvProblem& problem, std::string* why_not) {
  return make_onednn_kernel<OneDnnConv>(why_not, problem);
}

std::unique_ptr<Kernel> make_onednn_conv(const NodeSpec& node, std::string* why_not) {
  auto problem = read_conv(node, why_not);
  if (!problem) return nullptr;
  if (onednn_type(problem->dtype) == dnnl::memory::data_type::undef) {
    return decline(why_not, "dtype is {}", name_of(problem->dtype));
  }
  if (problem->axes.size() > 3) return decline(why_not, "more than three spatial axes");
  if (problem->multiplications() == 0) return decline(why_not, "empty product");
  // A oneDNN call cannot be interrupted: this limit takes seconds on a current server.
  constexpr int64_t kMostMultiplications = int64_t{1} << 43;
  if (problem->multiplications() > kMostMultiplications)
    return decline(why_not, "too long for one call");
  // bfloat16 would only be slower without its instructions, and with slow ones.
  problem->bf16 =
      problem->bf16 && problem->dtype == DType::f32 &&
      onednn_uses(dnnl::cpu_isa::avx512_core_bf16) &&
      !(problem->multiplications() >= kFewMultiplications && widens_bf16(ProductKind::convolution));
  if (problem->bf16) {
    if (auto kernel = make_onednn_conv(*problem, why_not)) return kernel;
    problem->bf16 = false;
  }
  return make_onednn_conv(*problem, why_not);
}

}  // namespace steep::cpu
