// steep.RecurrentGrad: goes back through the steps, from the gates and states that forward kept, or
// that the layer, run again, gives. One product over all steps computes the gradients of the
// weights.

#include "providers/cpu/recurrent.h"

namespace steep::cpu {
namespace {

enum Result : uint8_t { dx, dw, dr, db, dh0, dc0, dp };

template <typename T>
class Backward {
 public:
  /// `scratch`: scratch_size(p) elements, 64-byte aligned.
  Backward(const RecurrentProblem& p, int64_t direction, const KernelArgs& args,
           const std::array<bool, 3>& given, const std::array<bool, 7>& wanted,
           const Trace<const T>& trace, T* scratch)
      : p_(p),
        d_(direction),
        args_(args),
        given_(given),
        wanted_(wanted),
        h_(p.hidden),
        width_(p.width()),
        f_(p.functions[static_cast<size_t>(direction)]),
        trace_(trace) {
    auto take = [&](int64_t elements) { return std::exchange(scratch, scratch + elements); };
    const int64_t rows = p.steps * p.batch;
    const bool gru = p.cell == Cell::gru;
    const T* r = args.input<T>(p.at.r) + direction * width_ * h_;
    const int64_t early = p.early_width();
    T* packed = take(StepProduct<T>::size(h_, early));
    product_ = StepProduct<T>(h_, early, r, h_, 1, width_, h_, packed);
    if (gru) {
      packed = take(StepProduct<T>::size(h_, h_));
      late_ = StepProduct<T>(h_, h_, r + early * h_, h_, 1, p.linear_before_reset ? h_ : width_, h_,
                             packed);
    }
    x_ = steps_first<T>(p, args, take(steps_first_size<T>(p)));
    dgates_ = take(rows * width_);
    dnew_ = take(rows * h_);
    dh_ = take(p.batch * h_);
    dc_ = take(p.batch * h_);
    dreset_ = take(p.batch * h_);
    dx_ = p.batch_major ? take(rows * p.input) : args.output<T>(dx);
    peep_ = p.has_p ? args.input<T>(p.at.p) + direction * 3 * h_ : nullptr;
  }

  static int64_t scratch_size(const RecurrentProblem& p) {
    const int64_t rows = p.steps * p.batch, h = p.hidden;
    return StepProduct<T>::size(h, p.early_width()) +
           (p.cell == Cell::gru ? StepProduct<T>::size(h, h) : 0) + steps_first_size<T>(p) +
           rows * p.width() + rows * h + 3 * p.batch * h + (p.batch_major ? rows * p.input : 0);
  }

  void run() {
    start(dh_, 1);
    start(dc_, 2);
    for_rows_of_batch(p_, [&](int64_t begin, int64_t end) {
      for (int64_t k = p_.steps; k-- > 0;) {
        step(p_.time(d_, k), begin, end);
        poll();
      }
    });
    finish(dh_, dh0, p_.has_h0);
    if (p_.cell == Cell::lstm) finish(dc_, dc0, p_.has_c0);
    weights();
  }

 private:
  void start(T* to, size_t gradient) const {
    for (int64_t n = 0; n < p_.batch; ++n) {
      if (given_[gradient]) {
        std::copy_n(args_.input<T>(gradient) + p_.state_at(d_, n), h_, to + n * h_);
      } else {
        std::fill_n(to + n * h_, h_, T{0});
      }
    }
  }

  void finish(const T* from, Result result, bool present) const {
    if (!present || !wanted_[result]) return;
    for (int64_t n = 0; n < p_.batch; ++n) {
      std::copy_n(from + n * h_, h_, args_.output<T>(result) + p_.state_at(d_, n));
    }
  }

  const T* state(int64_t t, int64_t n) const {
    return trace_.states + (p_.before(d_, t) * p_.batch + n) * h_;
  }
  const T* cell(int64_t slot, int64_t n) const { return trace_.cells + (slot * p_.batch + n) * h_; }

  /// Computes the gradients of the states before step t from those after it, of the sequences
  /// [first, last).
  void step(int64_t t, int64_t first, int64_t last) {
    T* dg = dgates_ + t * p_.batch * width_;
    T* dn = dnew_ + t * p_.batch * h_;
    const bool gru = p_.cell == Cell::gru, late_reset = gru && !p_.linear_before_reset;
    const int64_t count = last - first, state_at = first * h_;
    auto rows = [&](auto&& f) {
      parallel_for(count, grain_of(4096, width_), [&](int64_t begin, int64_t end) {
        for (int64_t n = first + begin; n < first + end; ++n) {
          if (t < length(p_, args_, n)) f(n);
        }
      });
    };
    if (p_.has_lens || gru) {
      std::fill(dg + first * width_, dg + last * width_, T{0});
      std::fill(dn + state_at, dn + last * h_, T{0});
    }
    rows([&](int64_t n) {
      T* d = dh_ + n * h_;
      if (given_[0]) {
        const T* dy = args_.input<T>(0) + p_.y_at(t, d_, n);
        for (int64_t j = 0; j < h_; ++j) d[j] += dy[j];
      }
      const T* g = trace_.gates + (t * p_.batch + n) * width_;
      const T* extra = trace_.extra + (t * p_.batch + n) * h_;
      if (p_.cell == Cell::lstm) {
        lstm(t, n, g, extra, dg + n * width_, d, dc_ + n * h_);
      } else if (gru) {
        finish_gru(state(t, n), g, extra, dg + n * width_, dn + n * h_, d);
      } else {
        for (int64_t j = 0; j < h_; ++j) {
          dg[n * width_ + j] = d[j] * slope(0, g[j]);
          d[j] = 0;
        }
      }
    });
    // Gates of masked rows have zero gradients, so the gradients of their states pass unchanged.
    if (late_reset) {
      late_.set(count, dg + first * width_ + 2 * h_, dreset_ + state_at);
      rows([&](int64_t n) {
        const T* r = trace_.gates + (t * p_.batch + n) * width_ + h_;
        const T* before = state(t, n);
        const T* d = dreset_ + n * h_;
        for (int64_t j = 0; j < h_; ++j) {
          dg[n * width_ + h_ + j] = d[j] * before[j] * slope(0, r[j]);
          dh_[n * h_ + j] += d[j] * r[j];
        }
      });
    }
    product_.add(count, dg + first * width_, dh_ + state_at);
    if (gru && p_.linear_before_reset) late_.add(count, dn + state_at, dh_ + state_at);
  }

  T slope(size_t function, T y) const { return f_[function].slope(y); }

  void lstm(int64_t t, int64_t n, const T* g, const T* squashed, T* dg, T* d, T* dc) const {
    const T* before = cell(p_.before(d_, t), n);
    const T *i = g, *o = g + h_, *f = g + 2 * h_, *c = g + 3 * h_;
    for (int64_t j = 0; j < h_; ++j) {
      const T d_o = d[j] * squashed[j] * slope(0, o[j]);
      T d_cell = dc[j] + d[j] * o[j] * slope(2, squashed[j]);
      if (peep_ != nullptr) d_cell += d_o * peep_[h_ + j];
      const T to_f = d_cell * before[j];
      const T to_i = d_cell * c[j] - (p_.input_forget ? to_f : T{0});
      const T d_i = to_i * slope(0, i[j]);
      const T d_f = p_.input_forget ? T{0} : to_f * slope(0, f[j]);
      dg[j] = d_i;
      dg[h_ + j] = d_o;
      dg[2 * h_ + j] = d_f;
      dg[3 * h_ + j] = d_cell * i[j] * slope(1, c[j]);
      dc[j] = d_cell * f[j];
      if (peep_ != nullptr) dc[j] += d_i * peep_[j] + d_f * peep_[2 * h_ + j];
      d[j] = 0;
    }
  }

  /// dn: the gradient of the operand of the reset gate, if that is a product with the state.
  void finish_gru(const T* before, const T* g, const T* extra, T* dg, T* dn, T* d) const {
    const T *z = g, *r = g + h_, *h = g + 2 * h_;
    for (int64_t j = 0; j < h_; ++j) {
      const T d_h = d[j] * (1 - z[j]) * slope(1, h[j]);
      dg[j] = d[j] * (before[j] - h[j]) * slope(0, z[j]);
      dg[2 * h_ + j] = d_h;
      if (p_.linear_before_reset) {
        dg[h_ + j] = d_h * extra[j] * slope(0, r[j]);
        dn[j] = d_h * r[j];
      }
      d[j] *= z[j];
    }
  }

  void weights() const {
    const int64_t rows = p_.steps * p_.batch, in = p_.input;
    const int64_t w_at = d_ * width_ * in, r_at = d_ * width_ * h_;
    // The states before each step are adjacent.
    const T* before = trace_.states + (p_.reversed(d_) ? p_.batch * h_ : 0);
    const bool gru = p_.cell == Cell::gru;
    if (wanted_[dx]) {
      gemm(false, false, rows, in, width_, dgates_, width_, args_.input<T>(p_.at.w) + w_at, in,
           d_ > 0 && !p_.batch_major, dx_, in);
      if (p_.batch_major) spread_dx();
    }
    if (wanted_[dw]) {
      gemm(true, false, width_, in, rows, dgates_, width_, x_, in, false,
           args_.output<T>(dw) + w_at, in);
    }
    if (wanted_[dr]) {
      T* to = args_.output<T>(dr) + r_at;
      gemm(true, false, gru ? 2 * h_ : width_, h_, rows, dgates_, width_, before, h_, false, to,
           h_);
      if (gru && p_.linear_before_reset) {
        gemm(true, false, h_, h_, rows, dnew_, h_, before, h_, false, to + 2 * h_ * h_, h_);
      } else if (gru) {
        gemm(true, false, h_, h_, rows, dgates_ + 2 * h_, width_, trace_.extra, h_, false,
             to + 2 * h_ * h_, h_);
      }
    }
    if (wanted_[db] && p_.has_b) {
      T* to = args_.output<T>(db) + d_ * 2 * width_;
      add_rows(dgates_, width_, to);
      std::copy_n(to, width_, to + width_);
      if (gru && p_.linear_before_reset) add_rows(dnew_, h_, to + width_ + 2 * h_);
    }
    if (wanted_[dp] && p_.has_p) peepholes(args_.output<T>(dp) + d_ * 3 * h_);
  }

  void add_rows(const T* from, int64_t width, T* sum) const {
    std::fill_n(sum, width, T{0});
    for (int64_t row = 0; row < p_.steps * p_.batch; ++row, from += width) {
      for (int64_t j = 0; j < width; ++j) sum[j] += from[j];
    }
  }

  void peepholes(T* sum) const {
    std::fill_n(sum, 3 * h_, T{0});
    for (int64_t t = 0; t < p_.steps; ++t) {
      for (int64_t n = 0; n < p_.batch; ++n) {
        const T* dg = dgates_ + (t * p_.batch + n) * width_;
        const T *before = cell(p_.before(d_, t), n), *after = cell(p_.after(d_, t), n);
        for (int64_t j = 0; j < h_; ++j) {
          sum[j] += dg[j] * before[j];
          sum[h_ + j] += dg[h_ + j] * after[j];
          sum[2 * h_ + j] += dg[2 * h_ + j] * before[j];
        }
      }
    }
  }

  void spread_dx() const {
    T* to = args_.output<T>(dx);
    for (int64_t n = 0; n < p_.batch; ++n) {
      for (int64_t t = 0; t < p_.steps; ++t, to += p_.input) {
        const T* from = dx_ + (t * p_.batch + n) * p_.input;
        for (int64_t j = 0; j < p_.input; ++j) to[j] = d_ > 0 ? to[j] + from[j] : from[j];
      }
    }
  }

  const RecurrentProblem& p_;
  int64_t d_;
  const KernelArgs& args_;
  const std::array<bool, 3>& given_;
  const std::array<bool, 7>& wanted_;
  int64_t h_, width_;
  const std::array<Activation, 3>& f_;
  const Trace<const T> trace_;
  StepProduct<T> product_, late_;  // with R; GRU: with its first two gates, and with the third
  const T *x_ = nullptr, *peep_ = nullptr;
  T *dgates_ = nullptr, *dnew_ = nullptr, *dh_ = nullptr, *dc_ = nullptr, *dreset_ = nullptr,
    *dx_ = nullptr;
};

template <typename T>
class RecurrentGrad final : public Kernel {
 public:
  RecurrentGrad(const NodeSpec& node, RecurrentProblem p) : id_(node), p_(std::move(p)) {
    for (size_t i = 0; i < given_.size(); ++i) given_[i] = node.in(i).present();
    for (size_t i = 0; i < wanted_.size(); ++i) wanted_[i] = node.out(i).present();
    kept_ = node.in(p_.at.trace).present();
    scratch_ = in_whole_lines<T>(
        std::max(Backward<T>::scratch_size(p_), kept_ ? 0 : forward_scratch<T>(p_)));
    scratch_bytes = static_cast<size_t>(scratch_ + (kept_ ? 0 : trace_size(p_))) * sizeof(T);
    flops = (kept_ ? 4.0 : 6.0) *
            static_cast<double>(p_.directions * p_.steps * p_.batch * p_.width()) *
            static_cast<double>(p_.input + p_.hidden);
  }

  void execute(const KernelArgs& args) const override {
    check_lens(p_, id_, args);
    T* scratch = static_cast<T*>(args.scratch);
    for (int64_t d = 0; d < p_.directions; ++d) {
      const T* memory =
          kept_ ? args.input<T>(p_.at.trace) + d * trace_size(p_) : scratch + scratch_;
      if (!kept_) run_forward<T>(p_, d, args, trace_in(p_, scratch + scratch_), scratch);
      Backward<T>(p_, d, args, given_, wanted_, trace_in(p_, memory), scratch).run();
    }
  }

 private:
  NodeId id_;
  RecurrentProblem p_;
  std::array<bool, 3> given_{};
  std::array<bool, 7> wanted_{};
  bool kept_ = false;    // forward kept its trace
  int64_t scratch_ = 0;  // elements, before the trace of a layer that runs again
};

}  // namespace

std::unique_ptr<Kernel> make_recurrent_grad(const NodeSpec& node, std::string* why_not) {
  auto p = read_recurrent(node, why_not);
  if (!p) return nullptr;
  const Operand& trace = node.in(p->at.trace);
  if (trace.present() && trace.size() != p->directions * trace_size(*p)) {
    return decline(why_not, "the trace has another size");
  }
  const DType dtype = p->dtype;
  if (dtype == DType::f32) return std::make_unique<RecurrentGrad<float>>(node, std::move(*p));
  if (dtype == DType::f64) return std::make_unique<RecurrentGrad<double>>(node, std::move(*p));
  return decline(why_not, "dtype is {}", name_of(dtype));
}

}  // namespace steep::cpu
