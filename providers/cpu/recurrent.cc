// LSTM, GRU and RNN, forward, for what oneDNN does not support. One product computes the input part
// of all steps; each step then multiplies the state and applies the gates, row by row.

#include "providers/cpu/recurrent.h"

#include "providers/cpu/parallel.h"

namespace steep::cpu {

int64_t trace_size(const RecurrentProblem& p) {
  const int64_t rows = p.steps * p.batch, states = rows + p.batch;
  return rows * p.width() + rows * p.hidden + states * p.hidden * (p.cell == Cell::lstm ? 2 : 1);
}

template <typename T>
const T* steps_first(const RecurrentProblem& p, const KernelArgs& args, T* copy) {
  const T* x = args.input<T>(p.at.x);
  if (!p.batch_major) return x;
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t t = 0; t < p.steps; ++t) {
      std::copy_n(x + (n * p.steps + t) * p.input, p.input, copy + (t * p.batch + n) * p.input);
    }
  }
  return copy;
}
template const float* steps_first(const RecurrentProblem&, const KernelArgs&, float*);
template const double* steps_first(const RecurrentProblem&, const KernelArgs&, double*);

namespace {

template <typename T>
class Forward {
 public:
  Forward(const RecurrentProblem& p, int64_t direction, const KernelArgs& args,
          const Trace<T>& trace, T* scratch)
      : p_(p),
        d_(direction),
        args_(args),
        h_(p.hidden),
        width_(p.width()),
        f_(p.functions[static_cast<size_t>(direction)]),
        b_(p.has_b ? args.input<T>(p.at.b) + direction * 2 * width_ : nullptr),
        peep_(p.has_p ? args.input<T>(p.at.p) + direction * 3 * h_ : nullptr),
        trace_(trace),
        x_(steps_first<T>(p, args, scratch)) {
    const T* r = args.input<T>(p.at.r) + direction * width_ * h_;
    T* packed = scratch + steps_first_size<T>(p);
    const int64_t early = p.early_width();
    product_ = StepProduct<T>(early, h_, r, 1, h_, h_, width_, packed);
    if (p.cell != Cell::gru) return;
    packed += StepProduct<T>::size(early, h_);
    late_ = StepProduct<T>(h_, h_, r + early * h_, 1, h_, h_, p.linear_before_reset ? h_ : width_,
                           packed);
  }

  static int64_t scratch_size(const RecurrentProblem& p) {
    return steps_first_size<T>(p) + StepProduct<T>::size(p.early_width(), p.hidden) +
           (p.cell == Cell::gru ? StepProduct<T>::size(p.hidden, p.hidden) : 0);
  }

  void run() {
    const int64_t rows = p_.steps * p_.batch;
    const T* w = args_.input<T>(p_.at.w) + d_ * width_ * p_.input;
    gemm(false, true, rows, width_, p_.input, x_, p_.input, w, p_.input, false, trace_.gates,
         width_);
    start(trace_.states, p_.has_h0 ? args_.input<T>(p_.at.h0) : nullptr);
    if (p_.cell == Cell::lstm) start(trace_.cells, p_.has_c0 ? args_.input<T>(p_.at.c0) : nullptr);
    for_rows_of_batch(p_, [&](int64_t begin, int64_t end) {
      for (int64_t k = 0; k < p_.steps; ++k) {
        step(p_.time(d_, k), begin, end);
        poll();
      }
    });
  }

 private:
  void start(T* states, const T* initial) const {
    T* first = states + p_.before(d_, p_.time(d_, 0)) * p_.batch * h_;
    for (int64_t n = 0; n < p_.batch; ++n) {
      if (initial == nullptr) {
        std::fill_n(first + n * h_, h_, T{0});
      } else {
        std::copy_n(initial + p_.state_at(d_, n), h_, first + n * h_);
      }
    }
  }

  /// Step t of the sequences [begin, end).
  void step(int64_t t, int64_t begin, int64_t end) const {
    const T* before = trace_.states + p_.before(d_, t) * p_.batch * h_;
    T* gates = trace_.gates + t * p_.batch * width_;
    T* extra = trace_.extra + t * p_.batch * h_;
    const bool gru = p_.cell == Cell::gru;
    const int64_t count = end - begin, state = begin * h_;
    product_.add(count, before + state, gates + begin * width_);
    if (gru && p_.linear_before_reset) {
      late_.set(count, before + state, extra + state);
    } else if (gru) {
      rows(begin, end, [&](int64_t n) {
        T* g = gates + n * width_;
        add_bias(g, 0, 2);
        f_[0].apply(g, 2 * h_);
        for (int64_t j = 0; j < h_; ++j) extra[n * h_ + j] = g[h_ + j] * before[n * h_ + j];
      });
      late_.add(count, extra + state, gates + begin * width_ + 2 * h_);
    }
    T* after = trace_.states + p_.after(d_, t) * p_.batch * h_;
    rows(begin, end, [&](int64_t n) {
      T* g = gates + n * width_;
      const T* from = before + n * h_;
      T* to = after + n * h_;
      if (t >= length(p_, args_, n)) {
        std::copy_n(from, h_, to);
        if (p_.cell == Cell::lstm)
          std::copy_n(cell(p_.before(d_, t), n), h_, cell(p_.after(d_, t), n));
      } else if (p_.cell == Cell::lstm) {
        lstm(g, cell(p_.before(d_, t), n), cell(p_.after(d_, t), n), extra + n * h_, to);
      } else if (gru) {
        finish_gru(g, from, extra + n * h_, to);
      } else {
        add_bias(g, 0, 1);
        f_[0].apply(g, h_);
        std::copy_n(g, h_, to);
      }
    });
  }

  template <typename F>
  void rows(int64_t first, int64_t last, F&& f) const {
    parallel_for(last - first, grain_of(4096, width_), [&](int64_t begin, int64_t end) {
      for (int64_t n = first + begin; n < first + end; ++n) f(n);
    });
  }

  T* cell(int64_t slot, int64_t n) const { return trace_.cells + (slot * p_.batch + n) * h_; }

  /// Adds both biases to the gates [first, last).
  void add_bias(T* g, int64_t first, int64_t last) const {
    if (b_ == nullptr) return;
    for (int64_t j = first * h_; j < last * h_; ++j) g[j] += b_[j] + b_[width_ + j];
  }

  /// Gates i, o, f, c; peepholes i, o, f.
  void lstm(T* g, const T* before, T* after, T* squashed, T* state) const {
    T *i = g, *o = g + h_, *f = g + 2 * h_, *c = g + 3 * h_;
    add_bias(g, 0, 4);
    if (peep_ != nullptr) {
      for (int64_t j = 0; j < h_; ++j) i[j] += peep_[j] * before[j];
      for (int64_t j = 0; j < h_; ++j) f[j] += peep_[2 * h_ + j] * before[j];
    }
    f_[0].apply(i, h_);
    if (p_.input_forget) {
      for (int64_t j = 0; j < h_; ++j) f[j] = 1 - i[j];
    } else {
      f_[0].apply(f, h_);
    }
    f_[1].apply(c, h_);
    for (int64_t j = 0; j < h_; ++j) squashed[j] = after[j] = f[j] * before[j] + i[j] * c[j];
    if (peep_ != nullptr) {
      for (int64_t j = 0; j < h_; ++j) o[j] += peep_[h_ + j] * after[j];
    }
    f_[0].apply(o, h_);
    f_[2].apply(squashed, h_);
    for (int64_t j = 0; j < h_; ++j) state[j] = o[j] * squashed[j];
  }

  /// Gates z, r, h. Without linear_before_reset, z and r are complete already.
  void finish_gru(T* g, const T* before, T* extra, T* state) const {
    T *z = g, *r = g + h_, *h = g + 2 * h_;
    if (p_.linear_before_reset) {
      add_bias(g, 0, 2);
      f_[0].apply(g, 2 * h_);
      for (int64_t j = 0; j < h_; ++j) {
        if (b_ != nullptr) extra[j] += b_[5 * h_ + j], h[j] += b_[2 * h_ + j];
        h[j] += r[j] * extra[j];
      }
    } else {
      add_bias(g, 2, 3);
    }
    f_[1].apply(h, h_);
    for (int64_t j = 0; j < h_; ++j) state[j] = (1 - z[j]) * h[j] + z[j] * before[j];
  }

  const RecurrentProblem& p_;
  int64_t d_;
  const KernelArgs& args_;
  int64_t h_, width_;
  const std::array<Activation, 3>& f_;
  const T *b_, *peep_;
  const Trace<T> trace_;
  const T* x_;
  StepProduct<T> product_, late_;  // with R; GRU: with its first two gates, and with the third
};

/// LSTM, GRU and RNN, whose trace is scratch, and steep.RecurrentWithTrace.
template <typename T>
class Recurrent final : public Kernel {
 public:
  Recurrent(const NodeSpec& node, RecurrentProblem p, bool gives_trace)
      : id_(node), p_(std::move(p)), gives_trace_(gives_trace) {
    for (size_t i = 0; i < 3; ++i) wanted_[i] = node.out(i).present();
    wanted_[2] = wanted_[2] && p_.cell == Cell::lstm;
    scratch_ = forward_scratch<T>(p_);
    const int64_t elements = scratch_ + (gives_trace ? 0 : trace_size(p_));
    scratch_bytes = static_cast<size_t>(elements) * sizeof(T);
    flops = 2.0 * static_cast<double>(p_.directions * p_.steps * p_.batch * p_.width()) *
            static_cast<double>(p_.input + p_.hidden);
  }

  void execute(const KernelArgs& args) const override {
    check_lens(p_, id_, args);
    T* scratch = static_cast<T*>(args.scratch);
    for (int64_t d = 0; d < p_.directions; ++d) {
      T* memory = gives_trace_ ? args.output<T>(3) + d * trace_size(p_) : scratch + scratch_;
      const Trace<T> trace = trace_in(p_, memory);
      run_forward<T>(p_, d, args, trace, scratch);
      copy_results(d, args, trace);
    }
  }

 private:
  void copy_results(int64_t d, const KernelArgs& args, const Trace<T>& trace) const {
    const int64_t h = p_.hidden;
    for (int64_t t = 0; wanted_[0] && t < p_.steps; ++t) {
      const T* states = trace.states + p_.after(d, t) * p_.batch * h;
      for (int64_t n = 0; n < p_.batch; ++n) {
        T* y = args.output<T>(0) + p_.y_at(t, d, n);
        if (t < length(p_, args, n)) {
          std::copy_n(states + n * h, h, y);
        } else {
          std::fill_n(y, h, T{0});
        }
      }
    }
    const int64_t last = p_.reversed(d) ? 0 : p_.steps;
    for (int64_t n = 0; n < p_.batch; ++n) {
      const int64_t at = (last * p_.batch + n) * h;
      if (wanted_[1]) std::copy_n(trace.states + at, h, args.output<T>(1) + p_.state_at(d, n));
      if (wanted_[2]) std::copy_n(trace.cells + at, h, args.output<T>(2) + p_.state_at(d, n));
    }
  }

  NodeId id_;
  RecurrentProblem p_;
  bool gives_trace_;
  int64_t scratch_ = 0;  // elements, before the trace
  std::array<bool, 3> wanted_{};
};

std::unique_ptr<Kernel> make_recurrent(const NodeSpec& node, std::string* why_not) {
  auto p = read_recurrent(node, why_not);
  if (!p) return nullptr;
  const bool traces = node.op == "steep.RecurrentWithTrace";
  if (traces && node.out(3).size() != p->directions * trace_size(*p)) {
    return decline(why_not, "the trace has another size");
  }
  const DType dtype = p->dtype;
  if (dtype == DType::f32) return std::make_unique<Recurrent<float>>(node, std::move(*p), traces);
  if (dtype == DType::f64) return std::make_unique<Recurrent<double>>(node, std::move(*p), traces);
  return decline(why_not, "dtype is {}", name_of(dtype));
}

}  // namespace

template <typename T>
int64_t forward_scratch(const RecurrentProblem& p) {
  return Forward<T>::scratch_size(p);
}
template int64_t forward_scratch<float>(const RecurrentProblem&);
template int64_t forward_scratch<double>(const RecurrentProblem&);

template <typename T>
void run_forward(const RecurrentProblem& p, int64_t direction, const KernelArgs& args,
                 const Trace<T>& trace, T* scratch) {
  Forward<T>(p, direction, args, trace, scratch).run();
}
template void run_forward(const RecurrentProblem&, int64_t, const KernelArgs&, const Trace<float>&,
                          float*);
template void run_forward(const RecurrentProblem&, int64_t, const KernelArgs&, const Trace<double>&,
                          double*);

void register_recurrent(std::vector<Candidate>& list) {
  for (const char* op : {"LSTM", "GRU", "RNN"}) {
    list.push_back({op, "onednn", make_onednn_recurrent});
    list.push_back({op, "gemm", make_recurrent});
  }
  list.push_back({"steep.RecurrentWithTrace", "gemm", make_recurrent});
  list.push_back({"steep.RecurrentGrad", "onednn", make_onednn_recurrent});
  list.push_back({"steep.RecurrentGrad", "gemm", make_recurrent_grad});
}

}  // namespace steep::cpu
