#include "artifact/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "steep/error.h"

namespace steep {
namespace {

bool has(Value v, DType dtype, const Dims& dims) {
  return v && v.dtype() == dtype && v.type().dims() == dims;
}
bool absent_or(Value v, DType dtype, const Dims& dims) { return !v || has(v, dtype, dims); }
bool one_element(Value v) { return element_count(v.type().dims()) == 1; }
bool counts(Node n, int least, int most, int outputs) {
  return n.input_count() >= least && n.input_count() <= most && n.output_count() == outputs &&
         n.output(0);
}
bool same_type(Value a, Value b) { return a && b && has(a, b.dtype(), b.type().dims()); }

bool broadcasts(const Dims& from, const Dims& to) {
  if (from.size() > to.size()) return false;
  const size_t lead = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] != 1 && from[i] != to[lead + i]) return false;
  }
  return true;
}

// --- elementwise, alone or in a body ------------------------------------------------------------

/// How the dtypes of an elementwise operator's inputs and output are related.
enum class Dtypes : uint8_t { same, compares, tests, logic, where, cast, random };

struct Elementwise {
  std::string_view op;
  Dtypes dtypes;
};

constexpr Elementwise kElementwise[] = {
    {"Abs", Dtypes::same},
    {"Acos", Dtypes::same},
    {"Acosh", Dtypes::same},
    {"Add", Dtypes::same},
    {"And", Dtypes::logic},
    {"Asin", Dtypes::same},
    {"Asinh", Dtypes::same},
    {"Atan", Dtypes::same},
    {"Atanh", Dtypes::same},
    {"Cast", Dtypes::cast},
    {"Ceil", Dtypes::same},
    {"Celu", Dtypes::same},
    {"Clip", Dtypes::same},
    {"Cos", Dtypes::same},
    {"Cosh", Dtypes::same},
    {"Div", Dtypes::same},
    {"Elu", Dtypes::same},
    {"Equal", Dtypes::compares},
    {"Erf", Dtypes::same},
    {"Exp", Dtypes::same},
    {"Floor", Dtypes::same},
    {"Gelu", Dtypes::same},
    {"Greater", Dtypes::compares},
    {"GreaterOrEqual", Dtypes::compares},
    {"HardSigmoid", Dtypes::same},
    {"HardSwish", Dtypes::same},
    {"Identity", Dtypes::same},
    {"IsInf", Dtypes::tests},
    {"IsNaN", Dtypes::tests},
    {"LeakyRelu", Dtypes::same},
    {"Less", Dtypes::compares},
    {"LessOrEqual", Dtypes::compares},
    {"Log", Dtypes::same},
    {"Max", Dtypes::same},
    {"Mean", Dtypes::same},
    {"Min", Dtypes::same},
    {"Mish", Dtypes::same},
    {"Mul", Dtypes::same},
    {"Neg", Dtypes::same},
    {"Not", Dtypes::logic},
    {"Or", Dtypes::logic},
    {"PRelu", Dtypes::same},
    {"Pow", Dtypes::same},
    {"Reciprocal", Dtypes::same},
    {"Relu", Dtypes::same},
    {"Round", Dtypes::same},
    {"Selu", Dtypes::same},
    {"Sigmoid", Dtypes::same},
    {"Sign", Dtypes::same},
    {"Sin", Dtypes::same},
    {"Sinh", Dtypes::same},
    {"Softplus", Dtypes::same},
    {"Softsign", Dtypes::same},
    {"Sqrt", Dtypes::same},
    {"Sub", Dtypes::same},
    {"Sum", Dtypes::same},
    {"Tan", Dtypes::same},
    {"Tanh", Dtypes::same},
    {"ThresholdedRelu", Dtypes::same},
    {"Where", Dtypes::where},
    {"Xor", Dtypes::logic},
    {"steep.Dropout", Dtypes::random},
    {"steep.DropoutMask", Dtypes::random},
    {"steep.GeluGrad", Dtypes::same},
};

const Elementwise* find_elementwise(std::string_view op) {
  const auto* const found = std::find_if(std::begin(kElementwise), std::end(kElementwise),
                                         [&](const Elementwise& e) { return e.op == op; });
  return found == std::end(kElementwise) ? nullptr : found;
}

/// Whether input i is the seed of a random operator, which does not broadcast.
bool is_seed_of(const Elementwise& e, int i) { return e.dtypes == Dtypes::random && i == 1; }

bool dtypes_fit(Node n, const Elementwise& e) {
  if (n.output_count() != 1 || !n.output(0) || !n.input(0)) return false;
  const DType y = n.output(0).dtype();
  bool fits = true;
  for (int i = 0; i < n.input_count() && fits; ++i) {
    if (!n.input(i)) continue;
    const DType x = n.input(i).dtype();
    switch (e.dtypes) {
      case Dtypes::same: fits = x == y; break;
      case Dtypes::compares: fits = y == DType::boolean && x == n.input(0).dtype(); break;
      case Dtypes::tests: fits = y == DType::boolean && is_float(x); break;
      case Dtypes::logic: fits = y == DType::boolean && x == y; break;
      case Dtypes::where: fits = x == (i == 0 ? DType::boolean : y); break;
      case Dtypes::cast: break;
      case Dtypes::random:
        fits = i == 1 ? has(n.input(1), DType::i64, {2}) : x == y && is_float(x);
        break;
    }
  }
  return fits;
}

bool elementwise_fits(Node n, const Elementwise& e) {
  if (!dtypes_fit(n, e)) return false;
  for (int i = 0; i < n.input_count(); ++i) {
    const Value x = n.input(i);
    if (x && !is_seed_of(e, i) && !broadcasts(x.type().dims(), n.output(0).type().dims()))
      return false;
  }
  return true;
}

bool is_seed_in(const Graph& body, Value v) {
  for (Node n : body.nodes()) {
    const Elementwise* e = find_elementwise(n.op());
    if (e != nullptr && e->dtypes == Dtypes::random && n.input(1) == v) return true;
  }
  return false;
}

bool fused_fits(Node n) {
  const Attr* const attribute = n.attrs().find("body");
  const Body* const handle = attribute == nullptr ? nullptr : std::get_if<Body>(attribute);
  if (handle == nullptr) return false;
  const Graph& body = **handle;
  if (body.inputs().size() != static_cast<size_t>(n.input_count()) || !body.updates().empty() ||
      body.outputs().size() != static_cast<size_t>(n.output_count()) || !n.output(0)) {
    return false;
  }
  const Dims dims = n.output(0).type().dims();
  for (int i = 0; i < n.input_count(); ++i) {
    const Value inner = body.inputs()[static_cast<size_t>(i)];
    if (!same_type(n.input(i), inner)) return false;
    if (!is_seed_in(body, inner) && !broadcasts(inner.type().dims(), dims)) return false;
  }
  for (int o = 0; o < n.output_count(); ++o) {
    const Value inner = body.outputs()[static_cast<size_t>(o)].value;
    if (n.output(o) && !has(n.output(o), inner.dtype(), dims)) return false;
  }
  for (Node inner : body.nodes()) {
    const Elementwise* e = find_elementwise(inner.op());
    if (e == nullptr || !elementwise_fits(inner, *e)) return false;
    if (!broadcasts(inner.output(0).type().dims(), dims)) return false;
  }
  return true;
}

// --- the others ---------------------------------------------------------------------------------

/// Checks the number of operands and the dtypes; the kernels check extents themselves.
bool product_fits(Node n) {
  if (!counts(n, 2, 4, 1) || !n.input(0) || !n.input(1)) return false;
  const DType dtype = n.output(0).dtype();
  if (dtype != DType::f32 && dtype != DType::f64) return false;
  for (int i = 0; i < n.input_count(); ++i) {
    if (n.input(i) && n.input(i).dtype() != dtype) return false;
  }
  return true;
}

bool reduction_fits(Node n) {
  return counts(n, 1, 2, 1) && n.input(0) && is_float(n.input(0).dtype()) &&
         n.output(0).dtype() == n.input(0).dtype() &&
         (!n.input(1) || (n.input(1).role() == Role::constant && n.input(1).rank() == 1 &&
                          n.input(1).dtype() == DType::i64));
}

bool softmax_fits(Node n) {
  if (!counts(n, 1, 1, 1) || !same_type(n.input(0), n.output(0))) return false;
  const int64_t rank = n.output(0).rank(), axis = n.attrs().integer("axis", -1);
  return is_float(n.output(0).dtype()) && axis >= -rank && axis < rank;
}

bool transpose_fits(Node n) {
  if (!counts(n, 1, 1, 1) || !n.input(0) || n.input(0).dtype() != n.output(0).dtype()) return false;
  const Dims from = n.input(0).type().dims(), to = n.output(0).type().dims();
  Ints reversed(from.size());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const Ints perm = n.attrs().ints("perm", reversed);
  if (perm.size() != from.size() || to.size() != from.size()) return false;
  std::vector<bool> taken(from.size(), false);
  for (size_t i = 0; i < perm.size(); ++i) {
    if (perm[i] < 0 || perm[i] >= static_cast<int64_t>(from.size())) return false;
    const auto axis = static_cast<size_t>(perm[i]);
    if (taken[axis] || to[i] != from[axis]) return false;
    taken[axis] = true;
  }
  return true;
}

struct Scores {
  DType real = DType::undefined;  // dtype of the summed values
  int64_t rows = 0, classes = 0;
  Dims loss{};
};

bool read_scores(Node n, Value scores, Value labels, Value weights, Scores* to) {
  if (!scores || !labels || scores.type().dims().size() != 2) return false;
  const DType dtype = scores.dtype();
  if (dtype != DType::f32 && dtype != DType::f64) return false;
  const Dims dims = scores.type().dims();
  *to = {.real = dtype, .rows = dims[0], .classes = dims[1]};
  const std::string reduction = n.attrs().string("reduction", "mean");
  if (reduction == "none") to->loss = {dims[0]};
  const DType label = labels.dtype();
  return (label == DType::i64 || label == DType::i32) && labels.type().dims() == Dims{dims[0]} &&
         absent_or(weights, dtype, {dims[1]});
}

bool cross_entropy_fits(Node n) {
  Scores s;
  if (n.input_count() > 3 || n.output_count() > 3) return false;
  return read_scores(n, n.input(0), n.input(1), n.input(2), &s) &&
         absent_or(n.output(0), s.real, s.loss) && absent_or(n.output(1), s.real, {s.rows}) &&
         absent_or(n.output(2), s.real, {s.rows});
}

bool cross_entropy_grad_fits(Node n) {
  Scores s;
  if (!counts(n, 5, 6, 1)) return false;
  return read_scores(n, n.input(1), n.input(2), n.input(5), &s) && n.input(0) &&
         has(n.input(0), s.real, s.loss) && has(n.input(3), s.real, {s.rows}) &&
         has(n.input(4), s.real, {s.rows}) && has(n.output(0), s.real, {s.rows, s.classes});
}

bool norm_fits(Node n) {
  for (int i = 0; i < n.input_count(); ++i) {
    const DType x = n.input(i) ? n.input(i).dtype() : DType::undefined;
    if (x != DType::f32 && x != DType::f64) return false;
  }
  return n.output_count() == 1 && has(n.output(0), DType::f32, {});
}

/// Checks inputs as ops/defs/optimizers/optimizers.h defines them. Result o > 0 is the new value of
/// state o - 1.
template <int kStates, int kMoreStates>
bool optimizer_fits(Node n) {
  constexpr int kStep = 3, kScale = 4, kFirstState = 5;
  const Value param = n.input(0), step = n.input(kStep), scale = n.input(kScale);
  if (!param || !step || !n.input(2) || !one_element(step)) return false;
  if (scale && !one_element(scale)) return false;
  if (n.input_count() > kFirstState + kMoreStates || n.output_count() > 1 + kMoreStates)
    return false;
  if (!same_type(n.input(1), param) || !same_type(n.output(0), param)) return false;
  for (int i = 0; i < kMoreStates; ++i) {
    const Value before = n.input(kFirstState + i), after = n.output(1 + i);
    if (!before && !after && i >= kStates) continue;
    if (!same_type(before, param) || !same_type(after, param)) return false;
  }
  return true;
}

struct Rule {
  std::string_view op;
  bool (*fits)(Node n);
};

constexpr Rule kRules[] = {
    {"LogSoftmax", softmax_fits},
    {"MatMul", product_fits},
    {"ReduceL2", reduction_fits},
    {"ReduceMax", reduction_fits},
    {"ReduceMean", reduction_fits},
    {"ReduceMin", reduction_fits},
    {"ReduceSum", reduction_fits},
    {"ReduceSumSquare", reduction_fits},
    {"Softmax", softmax_fits},
    {"Transpose", transpose_fits},
    {"steep.Adam", optimizer_fits<2, 3>},
    {"steep.Fused", fused_fits},
    {"steep.GlobalNorm", norm_fits},
    {"steep.MatMul", product_fits},
    {"steep.SGD", optimizer_fits<0, 1>},
    {"steep.SoftmaxCrossEntropy", cross_entropy_fits},
    {"steep.SoftmaxCrossEntropyGrad", cross_entropy_grad_fits},
    {"steep.SumTo", reduction_fits},
};

bool view_fits(Node n, const Ints& offsets) {
  const Value x = n.input(0);
  if (!x || offsets.size() != static_cast<size_t>(n.output_count()) || offsets.empty())
    return false;
  const size_t bytes = x.type().nbytes(), element = size_of(x.dtype());
  for (int o = 0; o < n.output_count(); ++o) {
    const Value y = n.output(o);
    if (!y) continue;
    const auto offset = static_cast<uint64_t>(offsets[static_cast<size_t>(o)]);
    if (size_of(y.dtype()) != element || offset % element != 0 || offset > bytes ||
        y.type().nbytes() > bytes - offset) {
      return false;
    }
  }
  return true;
}

enum class Verdict : uint8_t { passes, unknown, unfit };

Verdict judge(Node n) {
  if (const Elementwise* e = find_elementwise(n.op()))
    return elementwise_fits(n, *e) ? Verdict::passes : Verdict::unfit;
  const auto* const rule = std::find_if(std::begin(kRules), std::end(kRules),
                                        [&](const Rule& r) { return r.op == n.op(); });
  if (rule == std::end(kRules)) return Verdict::unknown;
  return rule->fits(n) ? Verdict::passes : Verdict::unfit;
}

}  // namespace

void require_known(const Graph& graph, const std::unordered_map<uint32_t, Ints>& views) {
  for (Node n : graph.nodes()) {
    const auto view = views.find(n.id());
    const Verdict verdict = view == views.end()          ? judge(n)
                            : view_fits(n, view->second) ? Verdict::passes
                                                         : Verdict::unfit;
    if (verdict == Verdict::passes) continue;
    std::string types;
    for (int i = 0; i < n.input_count(); ++i) {
      if (n.input(i)) types += (types.empty() ? "" : ", ") + to_string(n.input(i).type());
    }
    throw ModelError(ErrorParts{
        .what = verdict == Verdict::unknown ? "An artifact cannot hold a node of this operator."
                                            : "A node of an artifact does not fit its operands.",
        .node = n.name(),
        .op = n.op(),
        .expected = verdict == Verdict::unknown
                        ? "an operator that docs/runtime.md lists"
                        : "operands of float32 or float64 whose shapes fit the operator",
        .received = types,
        .remedy = "Train the model with the whole library."});
  }
}

std::vector<std::string_view> artifact_ops() {
  std::vector<std::string_view> ops;
  for (const Elementwise& e : kElementwise) ops.push_back(e.op);
  for (const Rule& rule : kRules) ops.push_back(rule.op);
  std::sort(ops.begin(), ops.end());
  return ops;
}

}  // namespace steep
