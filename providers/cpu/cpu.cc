#include "providers/cpu/cpu.h"

#include <algorithm>
#include <map>

#include "providers/cpu/data_shaped.h"

namespace steep::cpu {

// One line per kernel file. The list is explicit because linkers drop static initialisers from
// static libraries.
// clang-format off
#ifdef STEEP_RUNTIME  // the ops that artifacts may contain: src/artifact/rules.cc
#define STEEP_KERNELS(X) \
  X(adam) \
  X(cast) \
  X(elementwise) \
  X(global_norm) \
  X(matmul) \
  X(reduce) \
  X(sgd) \
  X(softmax) \
  X(softmax_cross_entropy) \
  X(transpose)
#else
#define STEEP_KERNELS(X) \
  X(adam) \
  X(arg_extremes) \
  X(attention) \
  X(attention_grad) \
  X(batch_norm) \
  X(cast) \
  X(cholesky) \
  X(concat) \
  X(conv) \
  X(copy) \
  X(cumulative) \
  X(deliver) \
  X(det) \
  X(elementwise) \
  X(expand) \
  X(fill) \
  X(gather) \
  X(gather_grad) \
  X(global_norm) \
  X(grid_sample) \
  X(grouped_matmul) \
  X(hardmax) \
  X(lamb) \
  X(layer_norm) \
  X(matmul) \
  X(mel_weight_matrix) \
  X(pad) \
  X(pool) \
  X(quantize) \
  X(random) \
  X(read_file) \
  X(recurrent) \
  X(reduce) \
  X(resize) \
  X(roi) \
  X(scatter) \
  X(sgd) \
  X(shape) \
  X(slice) \
  X(softmax) \
  X(softmax_cross_entropy) \
  X(solve) \
  X(tf_idf_vectorizer) \
  X(top_k) \
  X(transpose) \
  X(triangular_solve) \
  X(trilu)
#endif
// clang-format on

// One line per operator whose output shapes depend on data (data_shaped.h).
// clang-format off
#ifdef STEEP_RUNTIME
#define STEEP_DATA_SHAPED(X)
#else
#define STEEP_DATA_SHAPED(X) \
  X(Compress, compress) \
  X(NonMaxSuppression, non_max_suppression) \
  X(NonZero, non_zero) \
  X(Unique, unique)
#endif
// clang-format on

#define STEEP_DECLARE(stem) void register_##stem(std::vector<Candidate>& list);
STEEP_KERNELS(STEEP_DECLARE)
#undef STEEP_DECLARE

namespace {

const std::map<std::string_view, std::vector<Candidate>>& all_candidates() {
  static const auto by_op = [] {
    std::vector<Candidate> all;
#define STEEP_REGISTER(stem) register_##stem(all);
    STEEP_KERNELS(STEEP_REGISTER)
#undef STEEP_REGISTER
    std::map<std::string_view, std::vector<Candidate>> sorted;
    for (const Candidate& c : all) sorted[c.op].push_back(c);
    return sorted;
  }();
  return by_op;
}

}  // namespace

const std::vector<Candidate>& candidates(std::string_view op) {
  static const std::vector<Candidate> none;
  const auto it = all_candidates().find(op);
  return it == all_candidates().end() ? none : it->second;
}

std::vector<std::string_view> known_ops() {
  std::vector<std::string_view> ops;
  for (const auto& [op, list] : all_candidates()) ops.push_back(op);
  return ops;
}

MadeKernel make_kernel(const NodeSpec& node, std::string_view only, std::string* why_not) {
  std::string reasons = "no kernel";
  for (const Candidate& c : candidates(node.op)) {
    if (!only.empty() && c.name != only) continue;
    std::string reason;
    if (auto kernel = c.make(node, &reason)) return {std::move(kernel), c.name};
    reasons += fmt::format("; {}: {}", c.name, reason);
  }
  if (why_not != nullptr) *why_not = reasons;
  return {};
}

DataShapedKernel data_shaped([[maybe_unused]] std::string_view op) {
#define STEEP_FIND(name, stem) \
  if (op == #name) return run_##stem;
  STEEP_DATA_SHAPED(STEEP_FIND)
#undef STEEP_FIND
  return nullptr;
}

}  // namespace steep::cpu
