// MaxPool, AveragePool and their gradients by oneDNN, on arrays in place.
//
// oneDNN's forward pass can store the positions of the maxima in a workspace for backward. The
// graph has no such value; steep.MaxPoolGrad(dy, x) finds the maxima again, in scratch.
//
// oneDNN skips NaN, and starts its maximum at the lowest finite number. In PyTorch the maximum of a
// window with NaN is NaN. Inputs with NaN or -infinity therefore use Steep's loops.

#include <atomic>
#include <cstddef>
#include <limits>

#include "providers/cpu/onednn.h"
#include "providers/cpu/parallel.h"
#include "providers/cpu/pool.h"

namespace steep::cpu {
namespace {

using Desc = dnnl::memory::desc;
using Arguments = std::unordered_map<int, dnnl::memory>;

/// Whether x has no NaN and no number as low as oneDNN's initial maximum.
bool ordinary(const float* x, int64_t n) {
  std::atomic<bool> all{true};
  parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end) {
    int64_t odd = 0;
    for (int64_t i = begin; i < end; ++i) odd += !(x[i] > std::numeric_limits<float>::lowest());
    if (odd > 0) all = false;
  });
  return all;
}

/// The geometry in oneDNN's form.
struct Geometry {
  Dims x, y, strides, kernel, dilations, begin, end;

  explicit Geometry(const Pool& pool, const Dims& batch_and_channels)
      : x(batch_and_channels), y(batch_and_channels) {
    for (size_t i = 3 - pool.rank; i < 3; ++i) {
      const WindowAxis& a = pool.axes[i];
      x.push_back(a.in);
      y.push_back(a.out);
      strides.push_back(a.stride);
      kernel.push_back(a.kernel);
      dilations.push_back(a.dilation - 1);
      begin.push_back(a.pad_begin);
      // oneDNN needs the last window to end where the padding ends.
      end.push_back((a.out - 1) * a.stride + a.reach() - a.in - a.pad_begin);
    }
  }
};

class OneDnnPool final : public Kernel {
 public:
  /// Throws dnnl::error when oneDNN has no such primitive. `loops`: the kernel for inputs that are
  /// not ordinary(), used by max pooling.
  OneDnnPool(const Geometry& g, dnnl::algorithm algorithm, bool backward,
             std::unique_ptr<Kernel> loops)
      : backward_(backward), loops_(std::move(loops)) {
    const bool max = algorithm == dnnl::algorithm::pooling_max;
    x_ = onednn_desc(DType::f32, g.x, row_major_strides(g.x));
    y_ = onednn_desc(DType::f32, g.y, row_major_strides(g.y));
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const auto kind =
        backward ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const dnnl::pooling_forward::primitive_desc forward(onednn_engine(), kind, algorithm, x_, y_,
                                                        g.strides, g.kernel, g.dilations, g.begin,
                                                        g.end, attr);
    if (!backward || max) add(dnnl::pooling_forward(forward), forward);
    if (backward) {
      const dnnl::pooling_backward::primitive_desc pd(onednn_engine(), algorithm, x_, y_, g.strides,
                                                      g.kernel, g.dilations, g.begin, g.end,
                                                      forward, attr);
      add(dnnl::pooling_backward(pd), pd);
      if (max) {
        workspace_ = forward.workspace_desc();
        workspace_at_ = take(workspace_);
        maxima_at_ = take(y_);
      }
    }
  }

  /// False when oneDNN has only its reference loops for the problem.
  bool fast() const { return fast_; }

  void execute(const KernelArgs& args) const override try {
    const bool max = loops_ != nullptr;
    const auto* x = args.input<float>(backward_ ? 1 : 0);
    if (max && !ordinary(x, x_.get_size() / sizeof(float))) return loops_->execute(args);
    auto* scratch = static_cast<std::byte*>(args.scratch);
    auto run = [&](const Step& step, Arguments list) {
      if (max && backward_) {
        list.emplace(DNNL_ARG_WORKSPACE, onednn_memory(workspace_, scratch + workspace_at_));
      }
      if (step.scratchpad.get_size() > 0) {
        list.emplace(DNNL_ARG_SCRATCHPAD, onednn_memory(step.scratchpad, scratch + step.at));
      }
      step.primitive.execute(onednn_stream(), list);
    };
    if (!backward_ || max) {
      void* y = backward_ ? scratch + maxima_at_ : args.out[0];
      run(steps_.front(),
          {{DNNL_ARG_SRC, onednn_memory(x_, x)}, {DNNL_ARG_DST, onednn_memory(y_, y)}});
    }
    if (backward_) {
      run(steps_.back(), {{DNNL_ARG_DIFF_DST, onednn_memory(y_, args.in[0])},
                          {DNNL_ARG_DIFF_SRC, onednn_memory(x_, args.out[0])}});
    }
  } catch (const dnnl::error& error) {
    throw_onednn(error, "pooling");
  }

 private:
  struct Step {
    dnnl::primitive primitive;
    Desc scratchpad;
    size_t at;
  };

  size_t take(const Desc& desc) {
    const size_t at = scratch_bytes;
    scratch_bytes += whole_lines(desc.get_size());
    return at;
  }

  template <typename PrimitiveDesc>
  void add(dnnl::primitive primitive, const PrimitiveDesc& pd) {
    fast_ = fast_ && is_fast(pd);
    steps_.push_back({std::move(primitive), pd.scratchpad_desc(), take(pd.scratchpad_desc())});
  }

  bool backward_;
  std::unique_ptr<Kernel> loops_;
  Desc x_, y_, workspace_;
  std::vector<Step> steps_;
  size_t workspace_at_ = 0, maxima_at_ = 0;
  bool fast_ = true;
};

}  // namespace

std::unique_ptr<Kernel> make_onednn_pool(const NodeSpec& node, std::string* why_not) {
  const bool max = node.op.find("Max") != std::string_view::npos;
  const bool backward = node.op.ends_with("Grad");
  const bool count_pads = !max && node.attrs.integer("count_include_pad") != 0;
  const DType dtype = node.in(0).dtype;
  if (dtype != DType::f32) return decline(why_not, "dtype is {}", name_of(dtype));
  if (node.out(1).present())
    return decline(why_not, "the positions of the maxima (Indices) are used");
  const auto pool = read_pool(node, why_not);
  if (!pool) return nullptr;
  const Dims& x = backward ? node.out(0).dims : node.in(0).dims;
  if (element_count(x) == 0 || pool->out() == 0) return decline(why_not, "empty array");
  // A call cannot be interrupted, and oneDNN counts in 32 bits.
  constexpr double kMostWork = 1e11;
  constexpr int64_t kMostPlaces = int64_t{1} << 30;
  if (pool->work() > kMostWork) return decline(why_not, "too long for one call");
  for (const WindowAxis& a : pool->axes) {
    if (a.reach() > kMostPlaces || a.in > kMostPlaces || a.stride > kMostPlaces)
      return decline(why_not, "a window or an axis is too long");
  }
  for (size_t a = 0; a < 3; ++a) {
    for (size_t o = 0; o < pool->taps[a].size(); ++o) {
      const auto [first, last] = pool->taps[a][o];
      if (first == last) return decline(why_not, "a window lies in the padding");
      if (!max && count_pads && pool->inside_pads[a][o] != pool->axes[a].kernel) {
        return decline(why_not, "a window reaches past the padding, and padding counts");
      }
    }
  }
  std::unique_ptr<Kernel> loops;
  if (max) loops = backward ? make_max_pool_grad(node, why_not) : make_max_pool(node, why_not);
  if (max && !loops) return nullptr;
  using dnnl::algorithm;
  const auto mean =
      count_pads ? algorithm::pooling_avg_include_padding : algorithm::pooling_avg_exclude_padding;
  return make_onednn_kernel<OneDnnPool>(why_not, Geometry(*pool, {x[0], x[1]}),
                                        max ? algorithm::pooling_max : mean, backward,
                                        std::move(loops));
}

}  // namespace steep::cpu
