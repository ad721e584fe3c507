#include <algorithm>
#include <cmath>
#include <limits>

#include "providers/cpu/attention.h"
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/philox.h"

namespace steep::cpu {
namespace {

struct HeadLayout {
  Dims dims;  // [batch, head, row, column]
  HeadStrides strides;
};

/// The heads of an operand: the operand transposed by `perm`, or (`made`) an output that is
/// transposed from heads by `perm`.
std::optional<HeadLayout> read_heads(const NodeSpec& node, const Operand& operand,
                                     std::string_view perm_name, bool made, std::string* why_not) {
  Ints perm = node.attrs.ints(perm_name);
  if (perm.empty()) perm = {0, 1, 2, 3};
  if (operand.rank() != 4 || perm.size() != 4) {
    return decline(why_not, "{}: not four axes", perm_name), std::nullopt;
  }
  const Dims strides = row_major_strides(operand.dims);
  HeadLayout layout{Dims(4), {}};
  Dims of_heads(4);
  for (size_t i = 0; i < 4; ++i) {
    const auto at = static_cast<size_t>(perm[i]);
    const size_t head_axis = made ? at : i, operand_axis = made ? i : at;
    layout.dims[head_axis] = operand.dims[operand_axis];
    of_heads[head_axis] = strides[operand_axis];
  }
  if (of_heads[3] != 1) {
    return decline(why_not, "{} separates the columns of a head", perm_name), std::nullopt;
  }
  layout.strides = {of_heads[0], of_heads[1], of_heads[2]};
  return layout;
}

std::optional<MaskStrides> read_mask(const Operand& mask, DType dtype, const Dims& scores,
                                     std::string* why_not) {
  if (!mask.present()) return MaskStrides{};
  if (mask.dtype != dtype) return decline(why_not, "a mask's dtype"), std::nullopt;
  const Dims strides = row_major_strides(mask.dims);
  Dims by_axis(4, 0);
  const auto rank = static_cast<size_t>(mask.rank());
  if (rank > 4) return decline(why_not, "a mask has more than four axes"), std::nullopt;
  for (size_t i = 0; i < rank; ++i) {
    const size_t axis = 4 - rank + i;
    if (mask.dims[i] == 1) continue;
    if (mask.dims[i] != scores[axis]) {
      return decline(why_not, "a mask does not broadcast to the scores"), std::nullopt;
    }
    by_axis[axis] = strides[i];
  }
  return MaskStrides{true, {by_axis[0], by_axis[1], by_axis[2]}, by_axis[3]};
}

bool has_known_dtypes(const NodeSpec& node, bool grad, std::string* why_not) {
  const DType dtype = node.in(0).dtype;
  for (size_t i = 0; i < (grad ? 5 : 3); ++i) {
    if (node.in(i).dtype != dtype || (dtype != DType::f32 && dtype != DType::bf16)) {
      return decline(why_not, "dtypes are not all float32 or all bfloat16"), false;
    }
  }
  for (size_t i : {0, 1}) {
    if ((grad ? node.in(5 + i) : node.out(1 + i)).dtype != DType::f32) {
      return decline(why_not, "max or sum is not float32"), false;
    }
  }
  return true;
}

/// Reads the layouts of the gradients of the result and of the operands.
bool read_gradients(const NodeSpec& node, AttentionProblem* p, std::string* why_not) {
  const auto dy = read_heads(node, node.in(0), "perm_dy", false, why_not);
  if (!dy) return false;
  p->dy = dy->strides;
  HeadStrides* const targets[] = {&p->dq, &p->dk, &p->dv};
  constexpr std::string_view kPerms[] = {"perm_dq", "perm_dk", "perm_dv"};
  for (size_t i = 0; i < 3; ++i) {
    const auto d = read_heads(node, node.out(i), kPerms[i], true, why_not);
    if (!d) return false;
    *targets[i] = d->strides;
  }
  return true;
}

bool read_dropout(const NodeSpec& node, AttentionProblem* p, std::string* why_not) {
  const double ratio = node.attrs.real("ratio");
  if (!(ratio >= 0 && ratio <= 1)) return decline(why_not, "ratio is {}", ratio), false;
  p->dropout = {keep_threshold(ratio), node.attrs.integer("stream"),
                ratio < 1 ? 1 / (1 - ratio) : 0};
  return true;
}

}  // namespace

std::optional<AttentionProblem> read_attention(const NodeSpec& node, std::string* why_not) {
  const bool grad = node.op == "steep.AttentionGrad";
  if (!has_known_dtypes(node, grad, why_not)) return std::nullopt;
  const size_t q_at = grad ? 1 : 0, masks_at = grad ? 7 : 3;
  AttentionProblem p{};
  p.bf16 = node.in(q_at).dtype == DType::bf16;
  const auto q = read_heads(node, node.in(q_at), "perm_q", false, why_not);
  const auto k = read_heads(node, node.in(q_at + 1), "perm_k", false, why_not);
  const auto v = read_heads(node, node.in(q_at + 2), "perm_v", false, why_not);
  const auto y = read_heads(node, grad ? node.in(4) : node.out(0), "perm_y", true, why_not);
  if (!q || !k || !v || !y) return std::nullopt;
  p.batch = q->dims[0], p.heads = q->dims[1], p.queries = q->dims[2], p.width = q->dims[3];
  p.keys = k->dims[2], p.value_width = v->dims[3];
  if (p.pairs() * p.queries * p.keys * p.width * p.value_width == 0) {
    return decline(why_not, "an operand is empty"), std::nullopt;
  }
  p.q = q->strides, p.k = k->strides, p.v = v->strides, p.y = y->strides;
  if (grad && !read_gradients(node, &p, why_not)) return std::nullopt;
  const Dims scores{p.batch, p.heads, p.queries, p.keys};
  const auto bias = read_mask(node.in(masks_at), DType::f32, scores, why_not);
  const auto keep = read_mask(node.in(masks_at + 1), DType::boolean, scores, why_not);
  if (!bias || !keep) return std::nullopt;
  p.bias = *bias, p.keep = *keep;
  p.scale = static_cast<float>(node.attrs.real("scale"));
  p.masked = static_cast<float>(node.attrs.real("masked"));
  p.causal = node.attrs.integer("causal") != 0;
  p.zero_nan = node.attrs.integer("zero_nan") != 0;
  p.zero_shut = node.attrs.integer("zero_shut") != 0;
  p.random = node.in(masks_at + 2).present();
  if (p.random && !read_dropout(node, &p, why_not)) return std::nullopt;
  return p;
}

}  // namespace steep::cpu
