// LSTM, GRU and RNN with ONNX's default functions, and their steep.RecurrentGrad, by oneDNN. The
// gradient runs the layer again, with a workspace. Where forward keeps a trace, as it does in a
// training step on the host, recurrent_grad.cc computes the gradient instead.
//
// One primitive computes both directions. Arrays with other layouts than oneDNN's are reordered
// through scratch: oneDNN orders LSTM's gates i, f, c, o; weights have its preferred layout; y has
// the directions adjacent; there is one bias (and a fourth row for GRU's linear_before_reset).
//
// oneDNN sums the gradients of weights by thread; nothing else depends on the number of threads.

#include <algorithm>
#include <cstddef>

#include "providers/cpu/onednn.h"
#include "providers/cpu/parallel.h"
#include "providers/cpu/recurrent.h"

namespace steep::cpu {
namespace {

using Desc = dnnl::memory::desc;

/// The location of an array during an execution.
struct Place {
  enum class Kind : uint8_t { input, output, scratch };
  Kind kind = Kind::scratch;
  size_t at = 0;  ///< index of the node's input or output, or offset in scratch

  static Place input(size_t i) { return {Kind::input, i}; }
  static Place output(size_t i) { return {Kind::output, i}; }

  float* in(const KernelArgs& args) const {
    if (kind == Kind::input) return const_cast<float*>(args.input<float>(at));
    if (kind == Kind::output) return args.output<float>(at);
    return reinterpret_cast<float*>(static_cast<std::byte*>(args.scratch) + at);
  }
};

class Scratch {
 public:
  explicit Scratch(size_t* bytes) : bytes_(bytes) {}
  Place take(size_t bytes) const {
    const size_t at = *bytes_;
    *bytes_ += whole_lines(bytes);
    return {Place::Kind::scratch, at};
  }

 private:
  size_t* bytes_;
};

/// A primitive with its arrays in the node's layouts and in its own.
class Stage {
 public:
  Stage(const dnnl::primitive_desc& pd, Scratch scratch)
      : pd_(pd), scratch_(scratch), primitive_(pd) {
    own(DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc());
  }

  Desc wanted(int argument) const { return pd_.query_md(dnnl::query::exec_arg_md, argument); }

  /// An argument that the primitive reads: an array with layout `desc`, reordered if needed.
  void read(int argument, Place place, const Desc& desc) { add(argument, place, desc, true); }
  /// An argument that the primitive writes, to an array with layout `desc`.
  void write(int argument, Place place, const Desc& desc) { add(argument, place, desc, false); }
  /// An argument in scratch, in the primitive's layout.
  Place own(int argument, const Desc& desc) {
    const Place place = scratch_.take(desc.get_size());
    if (desc.get_size() > 0) arrays_.push_back({argument, place, desc, desc, place, {}, false});
    return place;
  }

  /// Clears the gradients of weights, to which oneDNN adds.
  void clear_weights(const KernelArgs& args) const {
    for (const Array& a : arrays_) {
      if (a.argument == DNNL_ARG_DIFF_WEIGHTS_LAYER || a.argument == DNNL_ARG_DIFF_WEIGHTS_ITER ||
          a.argument == DNNL_ARG_DIFF_BIAS) {
        std::fill_n(a.place.in(args), a.own.get_size() / sizeof(float), 0.0F);
      }
    }
  }

  void execute(const KernelArgs& args) const {
    dnnl::stream& stream = onednn_stream();
    std::unordered_map<int, dnnl::memory> list;
    for (const Array& a : arrays_) {
      list.emplace(a.argument, onednn_memory(a.own, a.place.in(args)));
      if (a.move && a.read) move(a, args, stream);
    }
    primitive_.execute(stream, list);
    for (const Array& a : arrays_) {
      if (a.move && !a.read) move(a, args, stream);
    }
  }

 private:
  struct Array {
    int argument;
    Place place;  ///< of the primitive's array
    Desc own;
    Desc desc;
    Place outside;
    dnnl::reorder move;  ///< empty when the layout needs no change
    bool read;
  };

  /// `own` with the axes of `desc`, which may split an axis.
  static Desc with_axes(const Desc& own, const Desc& desc) {
    return own.get_ndims() == desc.get_ndims() ? own : own.reshape(desc.get_dims());
  }

  void add(int argument, Place outside, const Desc& desc, bool read) {
    const Desc own = wanted(argument), same = with_axes(own, desc);
    if (same == desc) {
      arrays_.push_back({argument, outside, own, desc, outside, {}, read});
      return;
    }
    const auto& engine = onednn_engine();
    const dnnl::reorder::primitive_desc pd(engine, read ? desc : same, engine, read ? same : desc);
    arrays_.push_back(
        {argument, scratch_.take(own.get_size()), own, desc, outside, dnnl::reorder(pd), read});
  }

  static void move(const Array& a, const KernelArgs& args, dnnl::stream& stream) {
    dnnl::memory outside = onednn_memory(a.desc, a.outside.in(args));
    dnnl::memory inside = onednn_memory(with_axes(a.own, a.desc), a.place.in(args));
    a.move.execute(stream, a.read ? outside : inside, a.read ? inside : outside);
  }

  dnnl::primitive_desc pd_;
  Scratch scratch_;
  dnnl::primitive primitive_;
  std::vector<Array> arrays_;
};

/// The primitive descriptors of a layer: forward and, if requested, backward.
struct Layer {
  dnnl::primitive_desc forward, backward;
};

/// The node's arrays as descriptors with oneDNN's axes.
struct Views {
  Desc x, y, state, w, r, bias;

  explicit Views(const RecurrentProblem& p) {
    const int64_t t = p.steps, n = p.batch, in = p.input, h = p.hidden, d = p.directions;
    const int64_t g = p.gates;
    const bool batch_major = p.batch_major;
    x = view({t, n, in}, batch_major ? Dims{in, t * in, 1} : Dims{n * in, in, 1});
    if (d == 1) {
      y = view({t, n, h}, batch_major ? Dims{h, t * h, 1} : Dims{n * h, h, 1});
    } else {
      y = view({t, n, d, h},
               batch_major ? Dims{d * h, t * d * h, h, 1} : Dims{d * n * h, h, n * h, 1});
    }
    state = view({1, d, n, h},
                 batch_major ? Dims{n * d * h, h, d * h, 1} : Dims{d * n * h, n * h, h, 1});
    w = view({1, d, in, g, h}, {d * g * h * in, g * h * in, 1, h * in, in});
    r = view({1, d, h, g, h}, {d * g * h * h, g * h * h, 1, h * h, h});
    const bool two = p.cell == Cell::gru && p.linear_before_reset;  // two biases for the new state
    const Dims biases = {1, d, g + (two ? 1 : 0), h};
    bias = view(biases, row_major_strides(biases));
  }

  static Desc view(const Dims& dims, const Dims& strides) {
    return onednn_desc(DType::f32, dims, strides);
  }
};

/// Throws dnnl::error when oneDNN has no such primitive.
Layer describe(const RecurrentProblem& p, const Views& views, bool backward) {
  auto any = [](const Dims& dims) {
    return Desc(dims, dnnl::memory::data_type::f32, dnnl::memory::format_tag::any);
  };
  const Desc x = any(views.x.get_dims()), y = any({p.steps, p.batch, p.directions * p.hidden}),
             h = any(views.state.get_dims()), w = any(views.w.get_dims()),
             r = any(views.r.get_dims()), b = any(views.bias.get_dims());
  const auto direction = p.directions == 2  ? dnnl::rnn_direction::bidirectional_concat
                         : p.first_reversed ? dnnl::rnn_direction::unidirectional_right2left
                                            : dnnl::rnn_direction::unidirectional_left2right;
  const auto kind =
      backward ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
  const auto back = dnnl::prop_kind::backward;
  const auto& engine = onednn_engine();
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.cell == Cell::lstm) {
    const dnnl::lstm_forward::primitive_desc f(engine, kind, direction, x, h, h, w, r, b, y, h, h,
                                               attr);
    if (!backward) return {f, {}};
    return {f, dnnl::lstm_backward::primitive_desc(engine, back, direction, x, h, h, w, r, b, y, h,
                                                   h, x, h, h, w, r, b, y, h, h, f, attr)};
  }
  if (p.cell == Cell::rnn) {
    const auto function = p.functions[0][0].kind == Activation::Kind::relu
                              ? dnnl::algorithm::eltwise_relu
                              : dnnl::algorithm::eltwise_tanh;
    const dnnl::vanilla_rnn_forward::primitive_desc f(engine, kind, function, direction, x, h, w, r,
                                                      b, y, h, attr);
    if (!backward) return {f, {}};
    return {
        f, dnnl::vanilla_rnn_backward::primitive_desc(engine, back, function, direction, x, h, w, r,
                                                      b, y, h, x, h, w, r, b, y, h, f, attr)};
  }
  auto gru = [&]<typename Forward, typename Backward>(Forward*, Backward*) -> Layer {
    const typename Forward::primitive_desc f(engine, kind, direction, x, h, w, r, b, y, h, attr);
    if (!backward) return {f, {}};
    return {f, typename Backward::primitive_desc(engine, back, direction, x, h, w, r, b, y, h, x, h,
                                                 w, r, b, y, h, f, attr)};
  };
  if (p.linear_before_reset) {
    return gru(static_cast<dnnl::lbr_gru_forward*>(nullptr),
               static_cast<dnnl::lbr_gru_backward*>(nullptr));
  }
  return gru(static_cast<dnnl::gru_forward*>(nullptr), static_cast<dnnl::gru_backward*>(nullptr));
}

class OneDnnRecurrent final : public Kernel {
 public:
  /// Throws dnnl::error when oneDNN has no such primitive.
  OneDnnRecurrent(const NodeSpec& node, RecurrentProblem p, bool backward)
      : p_(std::move(p)), views_(p_), scratch_(&scratch_bytes) {
    const Layer layer = describe(p_, views_, backward);
    flops = (backward ? 8.0 : 2.0) *
            static_cast<double>(p_.directions * p_.steps * p_.batch * p_.width()) *
            static_cast<double>(p_.input + p_.hidden);
    w_ = p_.cell == Cell::lstm ? scratch_.take(views_.w.get_size()) : Place::input(p_.at.w);
    r_ = p_.cell == Cell::lstm ? scratch_.take(views_.r.get_size()) : Place::input(p_.at.r);
    bias_ = scratch_.take(views_.bias.get_size());
    zeros_ = scratch_.take(std::max(views_.state.get_size(), views_.y.get_size()));
    Stage& forward = stages_.emplace_back(layer.forward, scratch_);
    read_layer(&forward);
    if (backward) {
      add_backward(node, layer);
      return;
    }
    write_or_drop(&forward, DNNL_ARG_DST_LAYER, node, 0, views_.y);
    write_or_drop(&forward, DNNL_ARG_DST_ITER, node, 1, views_.state);
    if (p_.cell == Cell::lstm) {
      write_or_drop(&forward, DNNL_ARG_DST_ITER_C, node, 2, views_.state);
    }
  }

  void execute(const KernelArgs& args) const override try {
    std::fill_n(zeros_.in(args), zeros_bytes_ / sizeof(float), 0.0F);
    add_biases(args);
    if (p_.cell == Cell::lstm) {
      move_gates(args.input<float>(p_.at.w), w_.in(args), p_.input, false);
      move_gates(args.input<float>(p_.at.r), r_.in(args), p_.hidden, false);
    }
    stages_.front().execute(args);
    if (stages_.size() == 1) return;
    stages_.back().clear_weights(args);
    stages_.back().execute(args);
    if (p_.cell == Cell::lstm) {
      if (wanted_[dw]) move_gates(dw_.in(args), args.output<float>(dw), p_.input, true);
      if (wanted_[dr]) move_gates(dr_.in(args), args.output<float>(dr), p_.hidden, true);
    }
    if (wanted_[db]) divide_biases(args);
  } catch (const dnnl::error& error) {
    throw_onednn(error, "recurrent layer");
  }

 private:
  enum Result : uint8_t { dx, dw, dr, db, dh0, dc0 };

  void read_layer(Stage* stage) {
    const bool lstm = p_.cell == Cell::lstm;
    stage->read(DNNL_ARG_SRC_LAYER, Place::input(p_.at.x), views_.x);
    stage->read(DNNL_ARG_WEIGHTS_LAYER, w_, views_.w);
    stage->read(DNNL_ARG_WEIGHTS_ITER, r_, views_.r);
    stage->read(DNNL_ARG_BIAS, bias_, views_.bias);
    read_or_zero(stage, DNNL_ARG_SRC_ITER, p_.has_h0, p_.at.h0, views_.state);
    if (lstm) read_or_zero(stage, DNNL_ARG_SRC_ITER_C, p_.has_c0, p_.at.c0, views_.state);
  }

  void read_or_zero(Stage* stage, int argument, bool present, size_t input, const Desc& desc) {
    if (present) {
      stage->read(argument, Place::input(input), desc);
    } else {
      stage->read(argument, zeros_, stage->wanted(argument));
      zeros_bytes_ = std::max(zeros_bytes_, stage->wanted(argument).get_size());
    }
  }

  void write_or_drop(Stage* stage, int argument, const NodeSpec& node, size_t output,
                     const Desc& desc) {
    if (node.out(output).present()) {
      stage->write(argument, Place::output(output), desc);
    } else {
      stage->own(argument, stage->wanted(argument));
    }
  }

  void add_backward(const NodeSpec& node, const Layer& layer) {
    const bool lstm = p_.cell == Cell::lstm;
    for (size_t i = 0; i < wanted_.size(); ++i) wanted_[i] = node.out(i).present();
    wanted_[db] = wanted_[db] && p_.has_b;
    Stage backward(layer.backward, scratch_);
    read_layer(&backward);
    auto keep = [&](int argument) {
      Stage& forward = stages_.front();
      const Desc desc = forward.wanted(argument);
      backward.read(argument, forward.own(argument, desc), desc);
    };
    keep(DNNL_ARG_WORKSPACE);
    keep(DNNL_ARG_DST_LAYER);
    keep(DNNL_ARG_DST_ITER);
    if (lstm) keep(DNNL_ARG_DST_ITER_C);
    read_or_zero(&backward, DNNL_ARG_DIFF_DST_LAYER, node.in(0).present(), 0, views_.y);
    read_or_zero(&backward, DNNL_ARG_DIFF_DST_ITER, node.in(1).present(), 1, views_.state);
    if (lstm)
      read_or_zero(&backward, DNNL_ARG_DIFF_DST_ITER_C, node.in(2).present(), 2, views_.state);
    auto write = [&](int argument, bool wanted, Place place, const Desc& desc) {
      if (wanted) {
        backward.write(argument, place, desc);
      } else {
        backward.own(argument, backward.wanted(argument));
      }
    };
    dw_ = lstm ? scratch_.take(views_.w.get_size()) : Place::output(dw);
    dr_ = lstm ? scratch_.take(views_.r.get_size()) : Place::output(dr);
    dbias_ = scratch_.take(views_.bias.get_size());
    write(DNNL_ARG_DIFF_SRC_LAYER, wanted_[dx], Place::output(dx), views_.x);
    write(DNNL_ARG_DIFF_WEIGHTS_LAYER, wanted_[dw], dw_, views_.w);
    write(DNNL_ARG_DIFF_WEIGHTS_ITER, wanted_[dr], dr_, views_.r);
    write(DNNL_ARG_DIFF_BIAS, true, dbias_, views_.bias);
    write(DNNL_ARG_DIFF_SRC_ITER, wanted_[dh0] && p_.has_h0, Place::output(dh0), views_.state);
    if (lstm)
      write(DNNL_ARG_DIFF_SRC_ITER_C, wanted_[dc0] && p_.has_c0, Place::output(dc0), views_.state);
    stages_.push_back(std::move(backward));
  }

  /// The index of ONNX's gate for oneDNN's gate g.
  int64_t gate(int64_t g) const {
    constexpr std::array<int64_t, 4> kLstm = {0, 2, 3, 1};  // i, f, c, o as indices into i, o, f, c
    return p_.cell == Cell::lstm ? kLstm[static_cast<size_t>(g)] : g;
  }

  /// Reorders weights with `width` columns from ONNX's order of gates to oneDNN's, or back.
  void move_gates(const float* from, float* to, int64_t width, bool back) const {
    const int64_t size = p_.hidden * width;
    parallel_for(p_.directions * p_.gates, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t theirs = i / p_.gates * p_.gates + gate(i % p_.gates);
        std::copy_n(from + (back ? i : theirs) * size, size, to + (back ? theirs : i) * size);
      }
    });
  }

  /// Calls f(to, w, r) for each row of oneDNN's biases. w and r point at ONNX's two biases in the
  /// input or gradient `b`; null if the row does not include that bias.
  template <typename T, typename F>
  void each_bias(float* rows, T* b, F&& f) const {
    const int64_t count = views_.bias.get_dims()[2];
    for (int64_t i = 0; i < p_.directions * count; ++i, rows += p_.hidden) {
      const int64_t g = i % count;
      T* w = b + (i / count * 2 * p_.gates + gate(std::min(g, p_.gates - 1))) * p_.hidden;
      T* r = w + p_.width();
      const bool apart = count > p_.gates && g + 2 >= count;
      f(rows, apart && g + 1 == count ? nullptr : w, apart && g + 2 == count ? nullptr : r);
    }
  }

  void add_biases(const KernelArgs& args) const {
    std::fill_n(bias_.in(args), views_.bias.get_size() / sizeof(float), 0.0F);
    if (!p_.has_b) return;
    each_bias(bias_.in(args), args.input<float>(p_.at.b),
              [&](float* sum, const float* w, const float* r) {
                for (int64_t j = 0; w != nullptr && j < p_.hidden; ++j) sum[j] += w[j];
                for (int64_t j = 0; r != nullptr && j < p_.hidden; ++j) sum[j] += r[j];
              });
  }

  void divide_biases(const KernelArgs& args) const {
    each_bias(dbias_.in(args), args.output<float>(db), [&](const float* sum, float* w, float* r) {
      if (w != nullptr) std::copy_n(sum, p_.hidden, w);
      if (r != nullptr) std::copy_n(sum, p_.hidden, r);
    });
  }

  RecurrentProblem p_;
  Views views_;
  Scratch scratch_;
  std::vector<Stage> stages_;
  Place w_, r_, bias_, zeros_, dw_, dr_, dbias_;
  size_t zeros_bytes_ = 0;  ///< size of zeros_ in bytes
  std::array<bool, 6> wanted_{};
};

/// Whether the functions are those of oneDNN's cells.
bool default_functions(const RecurrentProblem& p) {
  using Kind = Activation::Kind;
  for (const auto& f : p.functions) {
    const bool plain = !std::isfinite(f[0].clip);
    const bool rnn =
        f[0].kind == p.functions[0][0].kind && (f[0].kind == Kind::tanh || f[0].kind == Kind::relu);
    const bool gates = f[0].kind == Kind::sigmoid && f[1].kind == Kind::tanh &&
                       (p.cell == Cell::gru || f[2].kind == Kind::tanh);
    if (!plain || !(p.cell == Cell::rnn ? rnn : gates)) return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<Kernel> make_onednn_recurrent(const NodeSpec& node, std::string* why_not) {
  const bool backward = node.op == "steep.RecurrentGrad";
  auto p = read_recurrent(node, why_not);
  if (!p) return nullptr;
  if (p->dtype != DType::f32) return decline(why_not, "dtype is {}", name_of(p->dtype));
  if (backward && node.in(p->at.trace).present()) return decline(why_not, "forward kept its trace");
  if (p->has_lens) return decline(why_not, "sequences have lengths of their own");
  if (p->has_p || p->input_forget) return decline(why_not, "peepholes or coupled gates");
  if (!default_functions(*p)) return decline(why_not, "functions are clipped or not the default");
  if (p->steps * p->batch * p->input * p->hidden == 0) return decline(why_not, "empty array");
  return make_onednn_kernel<OneDnnRecurrent>(why_not, node, std::move(*p), backward);
}

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
          const float* b, int64_t ldb, bool add, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t i = 0; i < m && !add; ++i) std::fill_n(c + i * ldc, n, 0.0F);
    return;
  }
  // oneDNN would divide longer sums among threads, so that results would depend on their number.
  constexpr int64_t kLongest = 512;
  for (int64_t begin = 0; begin < k; begin += kLongest) {
    const int64_t terms = std::min(kLongest, k - begin);
    const auto status =
        dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, terms, 1.0F, a + begin * (ta ? lda : 1),
                   lda, b + begin * (tb ? 1 : ldb), ldb, add || begin > 0 ? 1.0F : 0.0F, c, ldc);
    if (status != dnnl_success) {
      throw ProviderError({.what = "oneDNN could not multiply two matrices", .op = "sgemm"});
    }
  }
}

}  // namespace steep::cpu
