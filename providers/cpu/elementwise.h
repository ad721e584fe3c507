// The elementwise engine. One node, or a whole steep.Fused body, becomes a program: instructions
// over values that are blocks of one element type, small enough to stay in the first-level cache.
// Loads convert and broadcast, stores convert. So a chain of n ops reads its inputs and writes its
// outputs once.
//
//   elementwise_build.cc   node or body → Program
//   elementwise_slots.cc   registers of a Program
//   elementwise.cc         runs a Program
//   elementwise_loops.cc   float and double loops, elementwise_int.cc integer loops: one row an op
//   elementwise_simd.cc    float loops for each instruction set, chosen at run time
#pragma once

#include <array>
#include <optional>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"

namespace steep::cpu {

enum class Code : uint8_t {
  copy,
  // arithmetic
  add,
  sub,
  mul,
  div,
  pow,
  mod,
  fmod,
  min,
  max,
  neg,
  abs,
  square,
  cube,
  scale,
  // functions
  sqrt,
  root,
  exp,
  log,
  erf,
  sin,
  cos,
  tan,
  asin,
  acos,
  atan,
  sinh,
  cosh,
  tanh,
  asinh,
  acosh,
  atanh,
  sign,
  reciprocal,
  floor,
  ceil,
  round,
  // activations
  sigmoid,
  relu,
  leaky_relu,
  prelu,
  elu,
  selu,
  celu,
  softplus,
  softsign,
  hard_sigmoid,
  hard_swish,
  thresholded_relu,
  mish,
  gelu,
  gelu_grad,
  gelu_tanh,
  gelu_tanh_grad,
  // predicates and choice: true is 1, false is 0
  where,
  equal,
  greater,
  greater_equal,
  less,
  less_equal,
  logic_and,
  logic_or,
  logic_xor,
  logic_not,
  is_nan,
  is_inf,
  nonzero,
  bit_and,
  bit_or,
  bit_xor,
  bit_shift_left,
  bit_shift_right,
  bit_not,
  // the value after a store in the dtype and a load
  round_bf16,
  round_f16,
  round_f32,
  wrap,
  // random: need the index of the element
  dropout,
  dropout_mask,
  count,
};
inline constexpr size_t kCodes = static_cast<size_t>(Code::count);

/// Constants of an instruction; their meaning depends on the code.
struct Params {
  double p0 = 0;
  double p1 = 0;
  DType dtype = DType::undefined;  ///< dtype of the result
};

/// dst[i] = f(a[i], b[i], c[i]) for n elements. dst may be a, b or c. Unused operands are `a`.
template <typename T>
using Loop = void (*)(T* dst, const T* a, const T* b, const T* c, int64_t n, const Params& params);
/// Indexed by code; null where the element type does not have the operation.
template <typename T>
using LoopTable = std::array<Loop<T>, kCodes>;

const LoopTable<float>& float_loops();        ///< the fastest for this machine
const LoopTable<float>& plain_float_loops();  ///< no SIMD; has all codes
const LoopTable<double>& double_loops();
const LoopTable<int64_t>& int_loops();    ///< integers and bools, computed in 64 bits
const LoopTable<uint64_t>& uint_loops();  ///< the same if there are uint64 values

/// Thrown for an integer division by zero, or one whose result does not exist. The kernel converts
/// it to a DataError.
struct IntegerFault {
  std::string dividend, divisor;
};

/// The parameters of a dropout.
struct DropoutParams {
  uint64_t threshold = 0;  ///< keep_threshold(ratio)
  int64_t stream = 0;
  double scale = 1;  ///< factor for the elements that are kept
};
/// dst[i] = keep(first + i) ? a[i] * scale : 0; with a null `a`, dst[i] = keep(first + i). `first`
/// is a multiple of 4. `seed` is {seed, run}.
void dropout(const DropoutParams& params, const int64_t* seed, int64_t first, const float* a,
             float* dst, int64_t n);
void dropout(const DropoutParams& params, const int64_t* seed, int64_t first, const double* a,
             double* dst, int64_t n);

struct Program {
  using Slot = int16_t;

  struct Instruction {
    Code code;
    uint16_t dst, a, b, c;  // indices of values
    Params params{};
    DropoutParams dropout{};
    uint16_t seed_input = 0;  // index of the node's input; dropout only
  };

  struct Load {
    enum class Kind : uint8_t {
      direct,     // the value is the input itself
      convert,    // of the output's shape, another dtype
      scalar,     // one element, broadcast
      broadcast,  // read through strides
    };
    Kind kind = Kind::direct;
    uint16_t value = 0;
    uint16_t input = 0;
    Tensor constant{};  // replaces the input when defined
    DType dtype = DType::undefined;
    // Broadcast: the extents of the output, with axes merged as far as this operand allows, and its
    // strides in elements. The innermost stride is 0 or 1.
    Dims dims{};
    Dims strides{};
  };

  struct Store {
    uint16_t value = 0;
    uint16_t output = 0;
    DType dtype = DType::undefined;
    bool direct = false;  // the last instruction writes directly to the output
  };

  DType type = DType::f32;  ///< type of the values: f32, f64, i64 or u64
  int64_t size = 0;         ///< number of elements of every output
  std::vector<Load> loads{};
  std::vector<Instruction> instructions{};
  std::vector<Store> stores{};
  std::vector<Slot>
      slots{};  ///< by value: place in the register file, -1 where it is an input or output itself
  int slot_count = 0;
  bool may_fault = false;  ///< an integer division: run once without stores first
  std::vector<std::pair<int, int>> may_share{};
};

/// Program limits, so that the register file has a fixed size.
inline constexpr int kMaxSlots = 64;
inline constexpr int kMaxValues = 256;

/// Assigns a slot of the register file to each of the `values` that needs memory, and reuses slots
/// after the last read. Decides which outputs are written directly. Returns false when the file is
/// too small.
bool assign_slots(Program& program, int values);

/// Builds the program of a node (single op or steep.Fused); nothing, with the reason, if it cannot.
std::optional<Program> build_program(const NodeSpec& node, std::string* why_not);

/// The ops that build_program() supports.
std::vector<std::string_view> elementwise_ops();

}  // namespace steep::cpu
