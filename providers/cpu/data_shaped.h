// Kernels of operators whose output shapes depend on data. They allocate their results.
#pragma once

#include "providers/cpu/build_kernel.h"

namespace steep::cpu {

std::vector<Tensor> run_compress(const NodeSpec& node, std::span<const Tensor> inputs);
std::vector<Tensor> run_non_max_suppression(const NodeSpec& node, std::span<const Tensor> inputs);
std::vector<Tensor> run_non_zero(const NodeSpec& node, std::span<const Tensor> inputs);
std::vector<Tensor> run_unique(const NodeSpec& node, std::span<const Tensor> inputs);

[[noreturn]] inline void throw_misfit(const NodeSpec& node, std::string what, std::string expected,
                                      std::string received) {
  throw ShapeError({.what = std::move(what),
                    .node = std::string(node.name),
                    .op = std::string(node.op),
                    .expected = std::move(expected),
                    .received = std::move(received)});
}

/// The attribute `axis` for input 0, counted from the front. Throws ShapeError when it is out of
/// range.
inline int64_t axis_of(const NodeSpec& node) {
  const int64_t number = node.attrs.integer("axis");
  const int64_t rank = node.in(0).rank();
  const auto axis = axis_from_front(number, rank);
  if (!axis) {
    throw_misfit(node, "An axis is out of range.", fmt::format("{} to {}", -rank, rank - 1),
                 fmt::format("{}", number));
  }
  return *axis;
}

}  // namespace steep::cpu
