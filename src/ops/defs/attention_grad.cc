// steep.AttentionGrad(dy, q, k, v, y, max, sum, bias?, keep?, seed?){as steep.Attention, perm_dy,
// perm_dq, perm_dk, perm_dv} → dq, dk, dv: the gradients of steep.Attention's y. Recomputes the
// probabilities from q, k, max and sum. perm_dy transposes dy to heads, as perm_q does for q;
// perm_dq … transpose heads to the outputs, as perm_y does. Dao 2023, FlashAttention-2, algorithm
// 2.
#include "ops/build.h"
#include "ops/defs/attention.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

constexpr int kBias = 7;

std::vector<Type> attention_grad_infer(Node n) {
  std::vector<Type> types;
  for (const auto& [i, in, out] :
       {std::tuple{1, "perm_q", "perm_dq"}, std::tuple{2, "perm_k", "perm_dk"},
        std::tuple{3, "perm_v", "perm_dv"}}) {
    const auto heads = attention_shape(n, i, in);
    types.push_back({n.input(i).dtype(), {}});
    if (heads) types.back().shape = attention_permuted(n, *heads, out);
  }
  return types;
}

std::vector<Value> attention_grad_decompose(Node n) {
  const DType dtype = attention_precision(n.input(1));
  auto heads = [&](int i, std::string_view perm) {
    return cast(attention_permuted(n, n.input(i), perm), dtype);
  };
  Value dy = heads(0, "perm_dy"), q = heads(1, "perm_q"), k = heads(2, "perm_k"),
        v = heads(3, "perm_v");
  // The inverse of perm_y transposes y to heads.
  Value y = cast(n.input(4), dtype);
  if (const Ints perm = n.attrs().ints("perm_y"); !perm.empty()) {
    Ints back(perm.size());
    for (size_t i = 0; i < perm.size(); ++i) {
      back[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
    }
    y = transpose(y, back);
  }
  Value max = unsqueeze(n.input(5), {-1}), total = unsqueeze(n.input(6), {-1});
  Value p = exp(attention_scores(n, q, k, kBias) - max) / total;
  Value dv = matmul(swap_last(attention_dropout(n, p, kBias)), dy);
  Value dp = attention_dropout(n, matmul(dy, swap_last(v)), kBias);
  Value ds = p * (dp - sum(dy * y, {-1}, true));
  if (Value keep = n.input(kBias + 1)) ds = where(keep, ds, 0);
  ds = ds * real_of(n, "scale");
  auto result = [&](Value g, int like, std::string_view perm) {
    return attention_permuted(n, cast_like(g, n.input(like)), perm);
  };
  return {result(matmul(ds, k), 1, "perm_dq"), result(matmul(swap_last(ds), q), 2, "perm_dk"),
          result(dv, 3, "perm_dv")};
}

}  // namespace

extern const OpDef kSteepAttentionGrad = {.name = "steep.AttentionGrad",
                                          .attributes = kAttentionAttributes,
                                          .infer = attention_grad_infer,
                                          .decompose = attention_grad_decompose};

}  // namespace steep
