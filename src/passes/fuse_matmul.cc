// Folds what surrounds a matrix product into it: transposes of its operands and of its result
// become strides, a constant factor becomes alpha, a vector added to each row becomes the bias, and
// ReLU the epilogue.
//
//   Relu(MatMul(Transpose(x), w * 0.5) + b)  →  steep.MatMul(x, w, b) {perm_a, alpha=0.5,
//   activation="Relu"}

#include <algorithm>
#include <optional>

#include "ops/build.h"
#include "passes/pipeline.h"

namespace steep {
namespace {

using Users = std::vector<std::vector<Node>>;

std::optional<double> scalar_of(Value v) {
  if (!v || !is_float(v.dtype()) || v.rank() > 1) return {};
  return scalar_constant(v);
}

Ints identity_perm(int64_t rank) {
  Ints perm;
  for (int64_t i = 0; i < rank; ++i) perm.push_back(i);
  return perm;
}

Ints compose(const Ints& first, const Ints& then) {
  Ints out;
  for (int64_t i : then) out.push_back(first[static_cast<size_t>(i)]);
  return out;
}

/// Without a unit stride in either matrix axis a kernel would have to copy, which is what Transpose
/// does.
bool keeps_unit_stride(const Ints& perm) {
  const auto last = static_cast<int64_t>(perm.size()) - 1;
  return perm[perm.size() - 1] == last || perm[perm.size() - 2] == last;
}

struct Operand {
  Value value;
  Ints perm;
};

/// Walks up through transposes and constant factors.
Operand absorb_operand(Value v, Phase phase, double* alpha) {
  Operand op{v, identity_perm(v.rank())};
  while (Node p = op.value.producer()) {
    if (p.phase() != phase) {
      // What forward made for backward is there already, in the layout that it has.
      if (p.op() != "Transpose") break;
    }
    if (p.op() == "Transpose") {
      Ints perm = p.attrs().ints("perm");
      if (perm.empty()) {
        perm = identity_perm(op.value.rank());
        std::reverse(perm.begin(), perm.end());
      }
      const Ints combined = compose(perm, op.perm);
      if (!keeps_unit_stride(combined)) break;
      op = {p.input(0), combined};
    } else if (p.op() == "Mul" || p.op() == "Div") {
      const auto c = scalar_of(p.input(1));
      if (!c || p.input(0).rank() != op.value.rank()) break;
      *alpha = p.op() == "Mul" ? *alpha * *c : *alpha / *c;
      op.value = p.input(0);
    } else {
      break;
    }
  }
  return op;
}

Node only_user(const Graph& g, const Users& users, Value v, Phase phase) {
  if (users[v.id()].size() != 1 || users[v.id()][0].phase() != phase) return {};
  if (g.is_output(v)) return {};
  return users[v.id()][0];
}

Value bias_of(Node add, Value product) {
  Value other = add.input(0) == product ? add.input(1) : add.input(0);
  const bool vector = other && other != product && other.rank() == 1 && product.rank() >= 1 &&
                      provably_equal(other.shape()[0], product.shape().back()) &&
                      other.dtype() == product.dtype();
  return vector ? other : Value();
}

void fuse(Graph& g, const Users& users, Node n) {
  Value y = n.output(0);
  if (!is_float(y.dtype()) || n.input(0).rank() < 2 || n.input(1).rank() < 2) return;
  double alpha = 1;
  const Phase phase = n.phase();
  const Operand a = absorb_operand(n.input(0), phase, &alpha);
  const Operand b = absorb_operand(n.input(1), phase, &alpha);

  Value bias;
  Ints perm_y = identity_perm(y.rank());
  bool relu = false, transposed = false;
  Value last = y;
  while (Node user = only_user(g, users, last, phase)) {
    if (transposed) break;
    if ((user.op() == "Mul" || user.op() == "Div") && !bias && !relu && user.input(0) == last &&
        scalar_of(user.input(1)) && user.output(0).rank() == last.rank()) {
      const double c = *scalar_of(user.input(1));
      alpha = user.op() == "Mul" ? alpha * c : alpha / c;
    } else if (user.op() == "Add" && !bias && !relu && bias_of(user, last)) {
      bias = bias_of(user, last);
    } else if (user.op() == "Relu" && !relu) {
      relu = true;
    } else if (user.op() == "Transpose" && y.rank() >= 2) {
      const Ints perm = user.attrs().ints("perm");
      // The result's last axis must be one of the product's last two.
      if (perm.empty() || perm.back() < y.rank() - 2) break;
      perm_y = perm;
      transposed = true;
    } else {
      break;
    }
    last = user.output(0);
  }
  if (a.value == n.input(0) && b.value == n.input(1) && last == y) return;

  Attrs attrs{{"perm_a", a.perm}, {"perm_b", b.perm}, {"perm_y", perm_y}};
  if (alpha != 1) attrs.set("alpha", alpha);
  if (relu) attrs.set("activation", std::string("Relu"));
  Graph::Scope scope(g, phase, n.name());
  std::vector<Value> inputs{a.value, b.value};
  if (bias) inputs.push_back(bias);
  Value fused = apply("steep.MatMul", inputs, std::move(attrs));
  g.place_like(fused.producer(), n);
  g.replace_uses(last, fused);
}

}  // namespace

void fuse_matmul(Graph& g) {
  const Users users = g.users();
  for (Node n : g.nodes()) {
    if (n.op() == "MatMul") fuse(g, users, n);
  }
}

}  // namespace steep
