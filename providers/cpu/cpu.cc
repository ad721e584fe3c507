#include "providers/cpu/cpu.h"

#include <algorithm>
#include <map>

#include "providers/cpu/data_shaped.h"
#include "providers/cpu/isa.h"

namespace steep::cpu {

// One line a kernel file. An explicit list, because linkers drop static initialisers from static
// libraries.
// clang-format off
#define STEEP_KERNELS(X) \
  X(adam) \
  X(arg_extremes) \
  X(attention) \
  X(attention_grad) \
  X(batch_norm) \
  X(cast) \
  X(concat) \
  X(conv) \
  X(copy) \
  X(cumulative) \
  X(det) \
  X(elementwise) \
  X(expand) \
  X(fill) \
  X(gather) \
  X(gather_grad) \
  X(global_norm) \
  X(grid_sample) \
  X(hardmax) \
  X(lamb) \
  X(layer_norm) \
  X(matmul) \
  X(mel_weight_matrix) \
  X(pad) \
  X(pool) \
  X(quantize) \
  X(random) \
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
  X(tf_idf_vectorizer) \
  X(top_k) \
  X(transpose) \
  X(trilu)
// clang-format on

// One line an operator whose output shapes depend on data (data_shaped.h).
// clang-format off
#define STEEP_DATA_SHAPED(X) \
  X(Compress, compress) \
  X(NonMaxSuppression, non_max_suppression) \
  X(NonZero, non_zero) \
  X(Unique, unique)
// clang-format on

#define STEEP_DECLARE(stem) void register_##stem(std::vector<Candidate>& list);
STEEP_KERNELS(STEEP_DECLARE)
#undef STEEP_DECLARE

namespace {

class CpuProvider final : public Provider {
 public:
  CpuProvider() {
    limit_isa();
    std::vector<Candidate> all;
#define STEEP_REGISTER(stem) register_##stem(all);
    STEEP_KERNELS(STEEP_REGISTER)
#undef STEEP_REGISTER
    for (const Candidate& c : all) by_op_[c.op].push_back(c);
#define STEEP_REGISTER(op, stem) data_shaped_[#op] = run_##stem;
    STEEP_DATA_SHAPED(STEEP_REGISTER)
#undef STEEP_REGISTER
  }

  std::string_view name() const override { return "cpu"; }

  std::span<const Candidate> candidates(std::string_view op) const override {
    auto it = by_op_.find(op);
    if (it == by_op_.end()) return {};
    return it->second;
  }

  DataShapedKernel data_shaped(std::string_view op) const override {
    auto it = data_shaped_.find(op);
    return it == data_shaped_.end() ? nullptr : it->second;
  }

 private:
  std::map<std::string_view, std::vector<Candidate>> by_op_;
  std::map<std::string_view, DataShapedKernel> data_shaped_;
};

}  // namespace

const Provider& provider() {
  static const CpuProvider instance;
  return instance;
}

}  // namespace steep::cpu
