// Elementwise operators, single and fused: a small program that runs for each element. The body of
// a steep.Fused node is a graph, which is compiled to that program.
#include <algorithm>
#include <map>

#include "kernels.h"

namespace mirror {
namespace {

/// One operator on the values of one element. True is 1, false is 0.
using Function = float (*)(const float* x, double parameter);

float logistic(float x) { return 1 / (1 + std::exp(-x)); }
double normal_cdf(double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); }
double normal_pdf(double x) { return std::exp(-0.5 * x * x) * 0.39894228040143268; }
constexpr double kTanhScale = 0.79788456080286536, kTanhCube = 0.044715;

float gelu(const float* x, double by_tanh) {
  const double v = x[0];
  if (by_tanh == 0) return static_cast<float>(v * normal_cdf(v));
  return static_cast<float>(0.5 * v * (1 + std::tanh(kTanhScale * (v + kTanhCube * v * v * v))));
}

float gelu_grad(const float* x, double by_tanh) {
  const double v = x[1];
  if (by_tanh == 0) return static_cast<float>(x[0] * (normal_cdf(v) + v * normal_pdf(v)));
  const double t = std::tanh(kTanhScale * (v + kTanhCube * v * v * v));
  const double slope = kTanhScale * (1 + 3 * kTanhCube * v * v);
  return static_cast<float>(x[0] * (0.5 * (1 + t) + 0.5 * v * (1 - t * t) * slope));
}

const std::map<std::string, std::pair<int, Function>>& table() {
  static const std::map<std::string, std::pair<int, Function>> all{
      {"Abs", {1, [](const float* x, double) { return std::fabs(x[0]); }}},
      {"Add", {2, [](const float* x, double) { return x[0] + x[1]; }}},
      {"And", {2, [](const float* x, double) { return x[0] != 0 && x[1] != 0 ? 1.0F : 0.0F; }}},
      {"Cast", {1, [](const float* x, double) { return x[0]; }}},
      {"Cos", {1, [](const float* x, double) { return std::cos(x[0]); }}},
      {"Div", {2, [](const float* x, double) { return x[0] / x[1]; }}},
      {"Equal", {2, [](const float* x, double) { return x[0] == x[1] ? 1.0F : 0.0F; }}},
      {"Erf", {1, [](const float* x, double) { return std::erf(x[0]); }}},
      {"Exp", {1, [](const float* x, double) { return std::exp(x[0]); }}},
      {"Gelu", {1, gelu}},
      {"Greater", {2, [](const float* x, double) { return x[0] > x[1] ? 1.0F : 0.0F; }}},
      {"GreaterOrEqual", {2, [](const float* x, double) { return x[0] >= x[1] ? 1.0F : 0.0F; }}},
      {"Identity", {1, [](const float* x, double) { return x[0]; }}},
      {"Less", {2, [](const float* x, double) { return x[0] < x[1] ? 1.0F : 0.0F; }}},
      {"LessOrEqual", {2, [](const float* x, double) { return x[0] <= x[1] ? 1.0F : 0.0F; }}},
      {"Log", {1, [](const float* x, double) { return std::log(x[0]); }}},
      {"Mul", {2, [](const float* x, double) { return x[0] * x[1]; }}},
      {"Neg", {1, [](const float* x, double) { return -x[0]; }}},
      {"Not", {1, [](const float* x, double) { return x[0] == 0 ? 1.0F : 0.0F; }}},
      {"Or", {2, [](const float* x, double) { return x[0] != 0 || x[1] != 0 ? 1.0F : 0.0F; }}},
      {"Pow", {2, [](const float* x, double) { return std::pow(x[0], x[1]); }}},
      {"Reciprocal", {1, [](const float* x, double) { return 1 / x[0]; }}},
      {"Relu", {1, [](const float* x, double) { return x[0] < 0 ? 0.0F : x[0]; }}},
      {"Sigmoid", {1, [](const float* x, double) { return logistic(x[0]); }}},
      {"Sin", {1, [](const float* x, double) { return std::sin(x[0]); }}},
      {"Sqrt", {1, [](const float* x, double) { return std::sqrt(x[0]); }}},
      {"Sub", {2, [](const float* x, double) { return x[0] - x[1]; }}},
      {"Tanh", {1, [](const float* x, double) { return std::tanh(x[0]); }}},
      {"Where", {3, [](const float* x, double) { return x[0] != 0 ? x[1] : x[2]; }}},
      {"steep.GeluGrad", {2, gelu_grad}},
  };
  return all;
}

/// A load of an operand. Registers are floats; a bool in memory is a byte.
struct Load {
  int input;
  bool byte;
  Dims strides;
};

struct Instruction {
  Function f;
  double parameter;
  std::vector<int> from;  // registers
  int to;
};

struct Store {
  int output;
  bool byte;
  int from;
};

struct Program {
  Dims dims;
  std::vector<float> constants;  // the first registers
  std::vector<Load> loads;       // the next registers
  std::vector<Instruction> code;
  std::vector<Store> stores;
  int registers = 0;
};

bool number(const Operand& x) { return x.type == kFloat || x.type == kBool; }

class Builder {
 public:
  Builder(const Node& node, std::string& why) : node_(node), why_(why) {}

  std::optional<Program> build() {
    if (!outputs() || !inputs()) return std::nullopt;
    const SteepGraph* body = node_.body();
    if (body == nullptr) {
      std::vector<int> from;
      for (int i = 0; i < node_.inputs(); ++i) from.push_back(of_input_[static_cast<size_t>(i)]);
      const int y = emit(node_, from);
      if (y < 0) return std::nullopt;
      program_.stores.push_back({0, node_.out(0).type == kBool, y});
    } else if (!run(body)) {
      return std::nullopt;
    }
    program_.registers = next_;
    return std::move(program_);
  }

 private:
  bool fail(std::string reason) {
    why_ = std::move(reason);
    return false;
  }

  bool outputs() {
    for (int i = 0; i < node_.outputs(); ++i) {
      const Operand y = node_.out(i);
      if (!y.present()) continue;
      if (!number(y)) return fail("a result is neither float32 nor bool");
      if (!program_.dims.empty() && program_.dims != y.dims) return fail("results differ in shape");
      program_.dims = y.dims;
    }
    return true;
  }

  /// Assigns registers to inputs. Constants of bodies come first, so they are numbered first.
  bool inputs() {
    for (int i = 0; i < node_.inputs(); ++i) {
      const Operand x = node_.in(i);
      of_input_.push_back(-1);
      if (!x.present()) continue;
      if (!number(x)) return fail("an operand is neither float32 nor bool");
      program_.loads.push_back({i, x.type == kBool, broadcast_strides(program_.dims, x.dims)});
      of_input_.back() = next_++;
    }
    return true;
  }

  /// The register with the node's result; -1 if the node cannot be computed.
  int emit(const Node& n, std::vector<int> from) {
    const auto it = table().find(n.op());
    const bool known = it != table().end();
    if (!known || static_cast<int>(from.size()) < it->second.first) {
      why_ = n.op() + (known ? " lacks operands" : " is no function of this device");
      return -1;
    }
    from.resize(static_cast<size_t>(it->second.first));
    const bool gelu = n.op() == "Gelu" || n.op() == "steep.GeluGrad";
    const double parameter = gelu && n.string("approximate") == "tanh" ? 1 : 0;
    program_.code.push_back({it->second.second, parameter, std::move(from), next_});
    return next_++;
  }

  bool run(const SteepGraph* body) {
    std::map<int64_t, int> known;  // id of an edge → its register
    for (int i = 0; i < host->graph_input_count(body); ++i) {
      SteepOperand x{};
      x.size = sizeof(x);
      host->graph_input(body, i, &x);
      known[x.value] = of_input_.at(static_cast<size_t>(i));
    }
    const auto find = [&](const Operand& x) {
      if (auto it = known.find(x.value); it != known.end()) return it->second;
      if (x.constant == nullptr || x.size() != 1 || !number(x)) return -1;
      const float value = x.type == kBool ? *static_cast<const uint8_t*>(x.constant)
                                          : *static_cast<const float*>(x.constant);
      constants_.emplace_back(next_, value);
      return known[x.value] = next_++;
    };
    for (int k = 0; k < host->node_count(body); ++k) {
      const Node n(host->node(body, k));
      std::vector<int> from;
      for (int i = 0; i < n.inputs(); ++i) {
        const Operand x = n.in(i);
        const int r = x.present() ? find(x) : -1;
        if (x.present() && r < 0) return fail("a constant of the body is no single number");
        from.push_back(r);
      }
      for (int i = 0; i < n.outputs(); ++i) {
        const Operand y = n.out(i);
        if (y.present() && !number(y)) return fail("a value within is neither float32 nor bool");
      }
      const int y = emit(n, from);
      if (y < 0) return false;
      known[n.out(0).value] = y;
    }
    for (int i = 0; i < host->graph_output_count(body); ++i) {
      SteepOperand raw{};
      raw.size = sizeof(raw);
      host->graph_output(body, i, &raw);
      const Operand y = operand_of(raw);
      const int r = find(y);
      if (r < 0) return fail("a result of the body is no value of it");
      if (node_.out(i).present()) program_.stores.push_back({i, node_.out(i).type == kBool, r});
    }
    return true;
  }

 public:
  /// Pairs of register and value.
  const std::vector<std::pair<int, float>>& constants() const { return constants_; }

 private:
  const Node& node_;
  std::string& why_;
  Program program_;
  std::vector<int> of_input_;
  std::vector<std::pair<int, float>> constants_;
  int next_ = 0;
};

void execute(const Program& program, const std::vector<std::pair<int, float>>& constants,
             const Pointers& at) {
  std::vector<float> r(static_cast<size_t>(program.registers));
  for (auto [index, value] : constants) r[static_cast<size_t>(index)] = value;
  const size_t loads = program.loads.size();
  std::vector<int64_t> offsets(loads, 0);
  Dims index(program.dims.size(), 0);
  int64_t count = 1;
  for (int64_t d : program.dims) count *= d;
  float x[3];
  for (int64_t e = 0; e < count; ++e) {
    for (size_t l = 0; l < loads; ++l) {
      const Load& load = program.loads[l];
      const void* data = at.in[static_cast<size_t>(load.input)];
      r[l] = load.byte ? static_cast<const uint8_t*>(data)[offsets[l]]
                       : static_cast<const float*>(data)[offsets[l]];
    }
    for (const Instruction& i : program.code) {
      for (size_t k = 0; k < i.from.size(); ++k) x[k] = r[static_cast<size_t>(i.from[k])];
      r[static_cast<size_t>(i.to)] = i.f(x, i.parameter);
    }
    for (const Store& s : program.stores) {
      const float y = r[static_cast<size_t>(s.from)];
      void* data = at.out[static_cast<size_t>(s.output)];
      if (s.byte) {
        static_cast<uint8_t*>(data)[e] = y != 0 ? 1 : 0;
      } else {
        static_cast<float*>(data)[e] = y;
      }
    }
    for (size_t a = program.dims.size(); a-- > 0;) {
      const bool more = ++index[a] < program.dims[a];
      for (size_t l = 0; l < loads; ++l) {
        const int64_t stride = program.loads[l].strides[a];
        offsets[l] += more ? stride : -stride * (program.dims[a] - 1);
      }
      if (more) break;
      index[a] = 0;
    }
  }
}

std::optional<Kernel> make(const Node& node, std::string& why) {
  Builder builder(node, why);
  std::optional<Program> program = builder.build();
  if (!program) return std::nullopt;
  Kernel kernel;
  // The program runs element by element, so a result may share the buffer of an operand with the
  // same size and shape.
  for (const Load& load : program->loads) {
    const Operand x = node.in(load.input);
    for (const Store& store : program->stores) {
      if (x.dims == program->dims && load.byte == store.byte && program->stores.size() == 1)
        kernel.may_share.emplace_back(load.input, store.output);
    }
  }
  kernel.bind = [program = std::move(*program),
                 constants = builder.constants()](const Pointers& at) {
    return [&program, &constants, at] { execute(program, constants, at); };
  };
  return kernel;
}

}  // namespace

bool is_elementwise(const std::string& op) { return table().count(op) != 0; }

std::vector<std::string> elementwise_ops() {
  std::vector<std::string> ops;
  for (const auto& [op, row] : table()) ops.push_back(op);
  return ops;
}

std::optional<Kernel> make_elementwise(const Node& node, std::string& why) {
  return make(node, why);
}

std::optional<Kernel> make_fused(const Node& node, std::string& why) { return make(node, why); }

}  // namespace mirror
