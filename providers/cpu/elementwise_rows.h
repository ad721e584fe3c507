// The operators that the elementwise engine supports.
#pragma once

#include <string_view>

#include "providers/cpu/elementwise.h"

namespace steep::cpu {

/// One row per op that is a single instruction. Other ops have rows with functions in
/// elementwise_build.cc.
struct OpRow {
  std::string_view op;
  Code code;
  int inputs;
  const char* p0 = nullptr;  ///< names of the attributes for Params p0 and p1
  const char* p1 = nullptr;
};

inline constexpr OpRow kOps[] = {
    {"Identity", Code::copy, 1},
    {"Add", Code::add, 2},
    {"Sub", Code::sub, 2},
    {"Mul", Code::mul, 2},
    {"Div", Code::div, 2},
    {"Neg", Code::neg, 1},
    {"Abs", Code::abs, 1},
    {"Sqrt", Code::sqrt, 1},
    {"Exp", Code::exp, 1},
    {"Log", Code::log, 1},
    {"Erf", Code::erf, 1},
    {"Sin", Code::sin, 1},
    {"Cos", Code::cos, 1},
    {"Tan", Code::tan, 1},
    {"Asin", Code::asin, 1},
    {"Acos", Code::acos, 1},
    {"Atan", Code::atan, 1},
    {"Sinh", Code::sinh, 1},
    {"Cosh", Code::cosh, 1},
    {"Tanh", Code::tanh, 1},
    {"Asinh", Code::asinh, 1},
    {"Acosh", Code::acosh, 1},
    {"Atanh", Code::atanh, 1},
    {"Sign", Code::sign, 1},
    {"Reciprocal", Code::reciprocal, 1},
    {"Floor", Code::floor, 1},
    {"Ceil", Code::ceil, 1},
    {"Round", Code::round, 1},
    {"Sigmoid", Code::sigmoid, 1},
    {"Relu", Code::relu, 1},
    {"LeakyRelu", Code::leaky_relu, 1, "alpha"},
    {"PRelu", Code::prelu, 2},
    {"Elu", Code::elu, 1, "alpha"},
    {"Selu", Code::selu, 1, "alpha", "gamma"},
    {"Celu", Code::celu, 1, "alpha"},
    {"Softplus", Code::softplus, 1},
    {"Softsign", Code::softsign, 1},
    {"HardSigmoid", Code::hard_sigmoid, 1, "alpha", "beta"},
    {"HardSwish", Code::hard_swish, 1},
    {"ThresholdedRelu", Code::thresholded_relu, 1, "alpha"},
    {"Mish", Code::mish, 1},
    {"Where", Code::where, 3},
    {"Equal", Code::equal, 2},
    {"Greater", Code::greater, 2},
    {"GreaterOrEqual", Code::greater_equal, 2},
    {"Less", Code::less, 2},
    {"LessOrEqual", Code::less_equal, 2},
    {"And", Code::logic_and, 2},
    {"Or", Code::logic_or, 2},
    {"Xor", Code::logic_xor, 2},
    {"Not", Code::logic_not, 1},
    {"IsNaN", Code::is_nan, 1},
    {"IsInf", Code::is_inf, 1, "detect_positive", "detect_negative"},
    {"BitwiseAnd", Code::bit_and, 2},
    {"BitwiseOr", Code::bit_or, 2},
    {"BitwiseXor", Code::bit_xor, 2},
    {"BitwiseNot", Code::bit_not, 1},
};

}  // namespace steep::cpu
