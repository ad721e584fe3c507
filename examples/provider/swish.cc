// An operator that this plug-in defines: mirror.Swish<beta = 1>(x) = x · sigmoid(beta x)
// (Ramachandran, Zoph & Le, Searching for Activation Functions, 2017). It has a kernel here; other
// devices run its decomposition.
#include <cstring>

#include "kernels.h"

namespace mirror {
namespace {

constexpr char kDecomposition[] = R"(<domain: "mirror", opset_import: ["": 18]>
Swish <beta: float = 1.0> (x) => (y) {
  scale = Constant <value_float: float = @beta> ()
  like = CastLike (scale, x)
  scaled = Mul (x, like)
  gate = Sigmoid (scaled)
  y = Mul (x, gate)
})";

/// With g = sigmoid(beta x): d(x g)/dx = g + beta (x g) (1 - g).
constexpr char kGradient[] = R"(<domain: "mirror", opset_import: ["": 18]>
SwishGrad <beta: float = 1.0> (x, y, dy) => (dx) {
  scale = Constant <value_float: float = @beta> ()
  like = CastLike (scale, x)
  scaled = Mul (x, like)
  gate = Sigmoid (scaled)
  one = Constant <value_float = 1.0> ()
  one_like = CastLike (one, x)
  closed = Sub (one_like, gate)
  slope = Mul (y, closed)
  scaled_slope = Mul (slope, like)
  whole = Add (gate, scaled_slope)
  dx = Mul (dy, whole)
})";

/// The result has the type of the operand; unknown extents stay unknown.
SteepError* infer(SteepNode* node) {
  SteepOperand x{};
  x.size = sizeof(x);
  host->input(node, 0, &x);
  if (x.dtype == kAbsent) return error(STEEP_SHAPE, "Swish lacks its operand.");
  return host->set_output(node, 0, x.dtype, x.rank, x.dims);
}

}  // namespace

std::optional<Kernel> make_swish(const Node& node, std::string& why) {
  if (!all_floats(node, why)) return std::nullopt;
  const double beta = node.real("beta");
  Kernel kernel;
  kernel.may_share = {{0, 0}};
  kernel.bind = [beta, count = node.in(0).size()](const Pointers& at) {
    return [=] {
      for (int64_t i = 0; i < count; ++i) {
        const double x = at.f(0)[i];
        at.y(0)[i] = static_cast<float>(x / (1 + std::exp(-beta * x)));
      }
    };
  };
  return kernel;
}

const SteepOp* ops(size_t* count) {
  static const SteepOp swish = [] {
    SteepOp op{};
    op.size = sizeof(op);
    op.domain = "mirror";
    op.name = "Swish";
    op.version = 1;
    op.inputs = 1;
    op.outputs = 1;
    op.infer = infer;
    op.decomposition = kDecomposition;
    op.decomposition_size = std::strlen(kDecomposition);
    op.gradient = kGradient;
    op.gradient_size = std::strlen(kGradient);
    return op;
  }();
  *count = 1;
  return &swish;
}

}  // namespace mirror
