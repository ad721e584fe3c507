// LSTM, GRU and RNN: one problem, one forward pass that stores what backward needs.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "providers/cpu/build_kernel.h"

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
/// them.
struct RecurrentInputs {
  size_t x, w, r, b, lens, h0, c0, p;
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

/// The problem of LSTM, GRU, RNN or steep.RecurrentGrad. Nothing, with the reason in *why_not, when
/// shapes and attributes do not fit.
std::optional<RecurrentProblem> read_recurrent(const NodeSpec& node, std::string* why_not);

/// The intermediate results of one direction's forward pass.
template <typename T>
struct Trace {
  const T* x;  ///< [steps, batch, input]
  T* gates;    ///< [steps, batch, gates, hidden], after their activations
  T* states;   ///< [steps + 1, batch, hidden], see RecurrentProblem::before
  T* cells;    ///< as `states`, the cells of LSTM
  T* extra;    ///< [steps, batch, hidden]: LSTM: h(cell); GRU: the operand of the reset gate
};

/// The number of elements of scratch for a Trace.
int64_t trace_size(const RecurrentProblem& p);
/// Throws DataError when a length is outside [0, steps].
void check_lens(const RecurrentProblem& p, const NodeId& id, const KernelArgs& args);
/// Runs one direction; `scratch` has trace_size(p) elements.
template <typename T>
Trace<T> run_forward(const RecurrentProblem& p, int64_t direction, const KernelArgs& args,
                     T* scratch);

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
