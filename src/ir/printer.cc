#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/graph.h"

namespace steep {
namespace {

std::string indent(const std::string& text) {
  std::string out = "{\n    ";
  for (size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (text[i] == '\n' && i + 1 < text.size()) out += "    ";
  }
  return out + "  }";
}

std::string show(const Attr& attr) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return fmt::format("\"{}\"", v);
        } else if constexpr (std::is_same_v<T, Ints> || std::is_same_v<T, Floats> ||
                             std::is_same_v<T, Strings>) {
          return fmt::format("[{}]", fmt::join(v, ", "));
        } else if constexpr (std::is_same_v<T, Tensor>) {
          return fmt::format("{}{}", name_of(v.dtype()), to_string(v.dims()));
        } else if constexpr (std::is_same_v<T, Body>) {
          return indent(to_text(*v));
        } else {
          return fmt::format("{}", v);
        }
      },
      attr);
}

std::string show(Value v) { return v ? "%" + v.name() : "_"; }

}  // namespace

std::string to_text(const Graph& graph) {
  std::string out;
  for (Value v : graph.inputs()) {
    out += fmt::format("input{} {}: {}\n",
                       graph.input_phase(v) == Phase::backward ? " (backward)" : "", show(v),
                       to_string(v.type()));
  }
  for (Value v : graph.states()) out += fmt::format("state {}: {}\n", show(v), to_string(v.type()));
  Phase phase = Phase::forward;
  for (Node n : graph.nodes()) {
    if (n.phase() != phase) {
      out += "--- backward\n";
      phase = n.phase();
    }
    std::vector<std::string> outs, ins, attrs;
    for (int i = 0; i < n.output_count(); ++i) {
      Value y = n.output(i);
      outs.push_back(y ? fmt::format("{}: {}", show(y), to_string(y.type())) : "_");
    }
    for (int i = 0; i < n.input_count(); ++i) {
      Value x = n.input(i);
      if (x && x.role() == Role::constant && x.tensor()->size() <= 8 && !is_float(x.dtype()) &&
          !is_narrow_float(x.dtype())) {
        ins.push_back(fmt::format("[{}]", fmt::join(x.tensor()->to_ints(), ", ")));
      } else {
        ins.push_back(show(x));
      }
    }
    for (const auto& [key, value] : n.attrs()) attrs.push_back(key + "=" + show(value));
    out += fmt::format("{} = {}({}){}\n", fmt::join(outs, ", "), n.op(), fmt::join(ins, ", "),
                       attrs.empty() ? "" : fmt::format(" {{{}}}", fmt::join(attrs, ", ")));
  }
  for (const Output& o : graph.outputs())
    out += fmt::format("output {} = {}\n", o.name, show(o.value));
  for (const Update& u : graph.updates())
    out += fmt::format("update {} = {}\n", show(u.state), show(u.value));
  return out;
}

}  // namespace steep
