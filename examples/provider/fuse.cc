// Two nodes that this device computes with one kernel: a sum and its layer normalisation.
#include <algorithm>

#include "kernels.h"

namespace mirror {
namespace {

constexpr const char* kAddNorm = "mirror.AddNorm";

SteepOperand edge(void (*read)(const SteepGraph*, int, SteepOperand*), const SteepGraph* graph,
                  int i) {
  SteepOperand raw{};
  raw.size = sizeof(raw);
  read(graph, i, &raw);
  return raw;
}

/// The index of the value among the inputs (or outputs) of a body; -1: not found.
int find(const SteepGraph* body, int64_t value, bool among_outputs) {
  const int count = among_outputs ? host->graph_output_count(body) : host->graph_input_count(body);
  for (int i = 0; i < count; ++i) {
    const auto read = among_outputs ? host->graph_output : host->graph_input;
    if (edge(read, body, i).value == value) return i;
  }
  return -1;
}

}  // namespace

/// Fuses, in a graph with known shapes, every Add of two operands of equal shape with the
/// LayerNormalization along the last axis that reads it.
SteepError* fuse(void*, SteepGraph* graph) {
  try {
    std::map<int64_t, const SteepNode*> sums;  // by the value that they compute
    for (int i = 0; i < host->node_count(graph); ++i) {
      const Node n(host->node(graph, i));
      if (n.op() == "Add" && n.in(0).dims == n.in(1).dims && n.in(0).type == kFloat)
        sums[n.out(0).value] = n.raw();
      if (n.op() != "LayerNormalization" || n.integer("axis") != -1) continue;
      const auto sum = sums.find(n.in(0).value);
      if (sum == sums.end()) continue;
      const SteepNode* nodes[] = {sum->second, n.raw()};
      if (SteepError* e = host->claim(graph, nodes, 2, kAddNorm)) return e;
      sums.erase(sum);
    }
    return nullptr;
  } catch (const std::exception& e) {
    return error(STEEP_BUG, "The device could not look for what it fuses.", e.what());
  }
}

std::optional<Kernel> make_add_norm(const Node& node, std::string& why) {
  if (!all_floats(node, why)) return std::nullopt;
  const SteepGraph* body = node.body();
  const Node add(host->node(body, 0)), norm(host->node(body, 1));
  const Operand sum = add.out(0);
  const int64_t length = sum.dims.empty() ? 1 : sum.dims.back();
  if (norm.in(1).size() != length) return decline(why, "a scale that is broadcast");
  const int a = find(body, add.in(0).value, false), b = find(body, add.in(1).value, false),
            scale = find(body, norm.in(1).value, false),
            bias = norm.in(2).present() ? find(body, norm.in(2).value, false) : -1;
  const auto out = [&](const Operand& y) { return y.present() ? find(body, y.value, true) : -1; };
  const int to_sum = out(sum), to_y = out(norm.out(0)), to_mean = out(norm.out(1)),
            to_inverse = out(norm.out(2));
  const double epsilon = norm.real("epsilon");
  const int64_t rows = length == 0 ? 0 : sum.size() / length;
  Kernel kernel;
  kernel.bind = [=](const Pointers& at) {
    return [=] {
      std::vector<float> x(static_cast<size_t>(length));
      for (int64_t r = 0; r < rows; ++r) {
        double total = 0, squares = 0;
        for (int64_t i = 0; i < length; ++i) {
          const float v = at.f(a)[r * length + i] + at.f(b)[r * length + i];
          total += x[static_cast<size_t>(i)] = v;
          if (to_sum >= 0) at.y(to_sum)[r * length + i] = v;
        }
        const double mean = total / static_cast<double>(length);
        for (const float v : x) squares += (v - mean) * (v - mean);
        const double inverse = 1 / std::sqrt(squares / static_cast<double>(length) + epsilon);
        for (int64_t i = 0; i < length && to_y >= 0; ++i) {
          const double unit = (x[static_cast<size_t>(i)] - mean) * inverse;
          at.y(to_y)[r * length + i] =
              static_cast<float>(unit * at.f(scale)[i] + (bias >= 0 ? at.f(bias)[i] : 0));
        }
        if (to_mean >= 0) at.y(to_mean)[r] = static_cast<float>(mean);
        if (to_inverse >= 0) at.y(to_inverse)[r] = static_cast<float>(inverse);
      }
    };
  };
  return kernel;
}

}  // namespace mirror
