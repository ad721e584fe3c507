// LSTM, GRU and RNN: one problem, one forward pass that stores what backward needs.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/matmul.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {

enum class Cell : uint8_t { rnn, gru, lstm };

/// One of ONNX's activation functions. Its argument is clipped to [-clip, clip] first.
struct Activation {
  enum class Kind : uint8_t {
    affine,
    elu,
    hard_sigmoid,
    leaky_relu,
    relu,
    scaled_tanh,
    sigmoid,
    softplus,
    softsign,
    tanh,
    thresholded_relu,
  };
  Kind kind = Kind::tanh;
  double alpha = 0, beta = 0;
  double clip = std::numeric_limits<double>::infinity();

  double at(double x) const;
  /// The derivative at the point where the function value is y. Outside the clip range the function
  /// is constant; y shows this, because all of these functions are monotonic.
  template <typename T>
  T slope(T y) const {
    if (std::isfinite(clip) && (y >= static_cast<T>(at(clip)) || y <= static_cast<T>(at(-clip)))) {
      return 0;
    }
    if (kind == Kind::sigmoid) return y * (1 - y);
    if (kind == Kind::tanh) return 1 - y * y;
    return static_cast<T>(other_slope(static_cast<double>(y)));
  }

  void apply(float* v, int64_t n) const;  ///< in place
  void apply(double* v, int64_t n) const;

 private:
  double other_slope(double y) const;
};

/// Indices of the operands among a node's inputs; steep.RecurrentGrad has three gradients before
/// them, and the trace after them.
struct RecurrentInputs {
  size_t x, w, r, b, lens, h0, c0, p, trace;
};

struct RecurrentProblem {
  Cell cell;
  int64_t steps, batch, input, hidden, gates, directions;
  bool first_reversed, batch_major, linear_before_reset, input_forget;
  bool has_b, has_lens, has_h0, has_c0, has_p;
  RecurrentInputs at;
  std::vector<std::array<Activation, 3>> functions;  ///< per direction: f, g, h
  DType dtype;

  bool reversed(int64_t direction) const { return first_reversed || direction == 1; }
  int64_t width() const { return gates * hidden; }
  /// The columns of R's product with the state that a step computes first. GRU's third gate has a
  /// product of its own.
  int64_t early_width() const { return cell == Cell::gru ? 2 * hidden : width(); }
  /// Offsets into y[steps, directions, batch, hidden] and into a state [directions, batch, hidden];
  /// with layout = 1 the batch comes first in both.
  int64_t y_at(int64_t t, int64_t d, int64_t n) const {
    return (batch_major ? (n * steps + t) * directions + d : (t * directions + d) * batch + n) *
           hidden;
  }
  int64_t state_at(int64_t d, int64_t n) const {
    return (batch_major ? n * directions + d : d * batch + n) * hidden;
  }
  /// The index, among steps + 1 states, of the state before (or after) step t.
  int64_t before(int64_t d, int64_t t) const { return reversed(d) ? t + 1 : t; }
  int64_t after(int64_t d, int64_t t) const { return reversed(d) ? t : t + 1; }
  /// The t of the k-th step.
  int64_t time(int64_t d, int64_t k) const { return reversed(d) ? steps - 1 - k : k; }
};

/// The problem of LSTM, GRU, RNN, steep.RecurrentWithTrace or steep.RecurrentGrad. Nothing, with
/// the reason in *why_not, when shapes and attributes do not fit.
std::optional<RecurrentProblem> read_recurrent(const NodeSpec& node, std::string* why_not);

/// What one direction's forward pass computes on the way, and backward reads. `T` may be const.
/// steep.RecurrentWithTrace gives it as a result; its layout is that of src/ops/defs/recurrent.cc.
template <typename T>
struct Trace {
  T* gates = nullptr;  ///< [steps, batch, gates, hidden], after their activations
  /// [steps, batch, hidden]: LSTM: h(cell); GRU: the operand of the reset gate.
  T* extra = nullptr;
  T* states = nullptr;  ///< [steps + 1, batch, hidden], see RecurrentProblem::before
  T* cells = nullptr;   ///< as `states`, the cells of LSTM
};

/// The number of elements of one direction's trace.
int64_t trace_size(const RecurrentProblem& p);

/// The trace in `memory`, trace_size(p) elements.
template <typename T>
Trace<T> trace_in(const RecurrentProblem& p, T* memory) {
  const int64_t rows = p.steps * p.batch, states = (rows + p.batch) * p.hidden;
  auto take = [&](int64_t elements) { return std::exchange(memory, memory + elements); };
  Trace<T> trace;
  trace.gates = take(rows * p.width());
  trace.extra = take(rows * p.hidden);
  trace.states = take(states);
  if (p.cell == Cell::lstm) trace.cells = take(states);
  return trace;
}

/// Computes one direction's trace; `scratch` has forward_scratch<T>(p) elements, 64-byte aligned.
template <typename T>
void run_forward(const RecurrentProblem& p, int64_t direction, const KernelArgs& args,
                 const Trace<T>& trace, T* scratch);
template <typename T>
int64_t forward_scratch(const RecurrentProblem& p);

/// X as [steps, batch, input]: the operand, or a copy in `copy`, steps_first_size<T>(p) elements.
template <typename T>
const T* steps_first(const RecurrentProblem& p, const KernelArgs& args, T* copy);

/// `elements` rounded up to whole cache lines, where the next part of scratch may start.
template <typename T>
int64_t in_whole_lines(int64_t elements) {
  return static_cast<int64_t>(whole_lines(static_cast<size_t>(elements) * sizeof(T)) / sizeof(T));
}

template <typename T>
int64_t steps_first_size(const RecurrentProblem& p) {
  return p.batch_major ? in_whole_lines<T>(p.steps * p.batch * p.input) : 0;
}

/// The product of each step: y[rows, n] = a[rows, k] · b[k, n], with a packed b.
template <typename T>
class StepProduct {
 public:
  StepProduct() = default;
  /// Packs b, whose element (i, j) is at i * b_k + j * b_n, to `packed`, size(n, k) elements. `a_m`
  /// and `y_m`: strides of the rows of a and y.
  StepProduct(int64_t n, int64_t k, const T* b, int64_t b_k, int64_t b_n, int64_t a_m, int64_t y_m,
              T* packed)
      : p_{.dtype = dtype_of<T>(),
           .y_dtype = dtype_of<T>(),
           .n = n,
           .k = k,
           .a_m = a_m,
           .a_k = 1,
           .b_k = b_k,
           .b_n = b_n,
           .y_m = y_m,
           .y_n = 1},
        packed_(packed) {
    pack_factor(p_, b, packed);
  }

  static int64_t size(int64_t n, int64_t k) {
    return static_cast<int64_t>(whole_lines(blocked_scratch(dtype_of<T>(), n, k)) / sizeof(T));
  }

  void set(int64_t rows, const T* a, T* y) const { multiply(rows, a, y, false); }
  void add(int64_t rows, const T* a, T* y) const { multiply(rows, a, y, true); }

 private:
  void multiply(int64_t rows, const T* a, T* y, bool adds) const {
    MatMulProblem p = p_;
    p.m = rows;
    multiply_packed(p, a, packed_, y, adds);
  }

  MatMulProblem p_;
  const T* packed_ = nullptr;
};

/// Calls body(begin, end) on ranges of the batch that run all steps, each in its own thread; on the
/// whole batch, which then uses the threads within each step, if that has the larger tasks.
template <typename F>
void for_rows_of_batch(const RecurrentProblem& p, F&& body) {
  constexpr int64_t kFewest = 4;  // the rows that a product computes at once
  constexpr int64_t kLarge = 1 << 20;
  const bool each_step =
      p.batch < kFewest * omp_get_max_threads() && p.batch * p.width() * p.hidden >= kLarge;
  if (each_step) {
    body(int64_t{0}, p.batch);
  } else {
    parallel_for(p.batch, kFewest, body);
  }
}

/// Throws DataError when a length is outside [0, steps].
void check_lens(const RecurrentProblem& p, const NodeId& id, const KernelArgs& args);

/// The number of steps of batch element n.
inline int64_t length(const RecurrentProblem& p, const KernelArgs& args, int64_t n) {
  return p.has_lens ? args.input<int32_t>(p.at.lens)[n] : p.steps;
}

/// c[m, n] (+)= op(a)[m, k] op(b)[k, n]; `ta` and `tb` select the transpose.
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
          const float* b, int64_t ldb, bool add, float* c, int64_t ldc);
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const double* a, int64_t lda,
          const double* b, int64_t ldb, bool add, double* c, int64_t ldc);

/// The candidates "onednn" for all four operators, and "gemm" for the gradient.
std::unique_ptr<Kernel> make_onednn_recurrent(const NodeSpec& node, std::string* why_not);
std::unique_ptr<Kernel> make_recurrent_grad(const NodeSpec& node, std::string* why_not);

}  // namespace steep::cpu
