#include "plan/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/budget.h"

namespace steep {
namespace {

constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Steep: compiled graph</title><style>
body{font:14px/1.4 system-ui,sans-serif;margin:2em;color:#222}
table{border-collapse:collapse;margin:1em 0}
th,td{text-align:left;padding:2px 12px 2px 0;border-bottom:1px solid #ddd;vertical-align:top}
th{position:sticky;top:0;background:#fff}td.n{text-align:right}
td.v{font:12px ui-monospace,monospace;overflow-wrap:anywhere;min-width:9em}tr.backward{background:#fbf6ee}tr:target{background:#ffe9a8}
svg{border:1px solid #bbb;background:#fafafa;max-width:100%}
svg text{font:11px system-ui,sans-serif;fill:#555}svg a:hover rect{stroke:#000;stroke-width:1.5}
.note{color:#555;max-width:60em}
.op{display:inline-block;margin-right:1.2em}.op i{display:inline-block;width:.9em;height:.9em;margin-right:.4em}
</style></head><body>
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

/// A CSS colour. An operator has the same colour on every page.
std::string colour(std::string_view op) {
  unsigned hash = 2166136261U;  // FNV-1a
  for (char c : op) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  hash ^= hash >> 11;  // of the shifts 5 to 24, this one separates common operators best
  return fmt::format("hsl({},60%,{}%)", hash % 360, 60 + 10 * (hash / 360 % 3));
}

class Page {
 public:
  explicit Page(const Plan& plan) : plan_(plan), made_by_(plan.buffers.size()) {
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const Step& step = plan.steps[s];
      for (size_t k = 0; k < step.outputs.size(); ++k) {
        const int buffer = step.outputs[k].buffer;
        if (buffer < 0) continue;
        Maker& maker = made_by_[static_cast<size_t>(buffer)];
        if (maker.step >= 0) continue;
        maker = {static_cast<int>(s), op_of(step), value_of(step, k)};
      }
      if (step.scratch.buffer < 0) continue;
      made_by_[static_cast<size_t>(step.scratch.buffer)] = {static_cast<int>(s), op_of(step),
                                                            "scratch of " + node_of(step)};
    }
  }

  std::string text(size_t number) const {
    std::string out = fmt::format("<p>{} steps, {} of them backward.</p>\n", plan_.steps.size(),
                                  plan_.steps.size() - plan_.backward_begin);
    out += arena(0, plan_.arena_bytes, number);
    for (size_t d = 0; d < plan_.device_arena_bytes.size(); ++d)
      out += arena(static_cast<int>(d) + 1, plan_.device_arena_bytes[d], number);
    return out + table(number);
  }

 private:
  struct Maker {
    int step = -1;
    std::string op{};
    std::string value{};
  };

  static std::string op_of(const Step& step) { return step.node ? step.node.op() : "copy"; }
  static std::string node_of(const Step& step) { return step.node ? step.node.name() : "a copy"; }

  static std::string value_of(const Step& step, size_t k) {
    if (!step.node || static_cast<int>(k) >= step.node.output_count()) return "a copy";
    const Value v = step.node.output(static_cast<int>(k));
    return v ? fmt::format("%{}: {}", v.name(), to_string(v.type())) : "nothing";
  }

  std::string provider_of(int device) const {
    return device == 0
               ? std::string(plan_.devices.host().provider())
               : std::string(plan_.devices.others()[static_cast<size_t>(device) - 1]->provider());
  }

  static bool is_drawn(const Buffer& b, int device) {
    return b.storage == Storage::arena && b.device == device && b.bytes != 0 && b.last >= 0;
  }

  /// The legend: the colours of operators, sorted by descending bytes.
  static std::string legend(const std::map<std::string, size_t>& bytes_of_op) {
    std::vector<std::pair<size_t, std::string>> ops;
    for (const auto& [op, bytes] : bytes_of_op) ops.emplace_back(bytes, op);
    std::sort(ops.rbegin(), ops.rend());
    std::string out =
        "<p class=\"note\">Each box is a value. It is as high as its bytes, and reaches from the "
        "step "
        "that makes it to the last step that reads it. Its colour is the operator's that makes it. "
        "Point at a box to see its name; click it to see its step.</p>\n<p>";
    for (const auto& [bytes, op] : ops) {
      out += fmt::format("<span class=\"op\"><i style=\"background:{}\"></i>{}</span>\n",
                         colour(op), escaped(op));
    }
    return out + "</p>\n";
  }

  /// A picture of an arena, with steps from left to right and bytes upwards. Each buffer is a box
  /// over its lifetime, at its offset.
  std::string arena(int device, size_t bytes, size_t number) const {
    constexpr double kWidth = 1000, kHeight = 420, kLeft = 100, kTop = 12;
    size_t values = 0;
    std::map<std::string, size_t> bytes_of_op;
    for (size_t i = 0; i < plan_.buffers.size(); ++i) {
      const Buffer& b = plan_.buffers[i];
      if (!is_drawn(b, device)) continue;
      values += b.bytes;
      bytes_of_op[made_by_[i].op] += b.bytes;
    }
    std::string out =
        fmt::format("<h3>Arena of {}: {} for {} of values</h3>\n", escaped(provider_of(device)),
                    bytes_text(bytes), bytes_text(values));
    if (bytes == 0 || plan_.steps.empty()) return out;
    out += legend(bytes_of_op);
    const double wide = kWidth / static_cast<double>(plan_.steps.size());
    const double high = kHeight / static_cast<double>(bytes);
    out += fmt::format("<svg viewBox=\"0 0 {} {}\" width=\"{}\">\n", kLeft + kWidth + 12,
                       kTop + kHeight + 36, kLeft + kWidth + 12);
    for (size_t i = 0; i < plan_.buffers.size(); ++i) {
      const Buffer& b = plan_.buffers[i];
      if (!is_drawn(b, device)) continue;
      const Maker& maker = made_by_[i];
      const double y = kTop + kHeight - static_cast<double>(b.offset + b.bytes) * high;
      out += fmt::format(
          "<a href=\"#p{}s{}\"><rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" "
          "fill=\"{}\" stroke=\"#fff\" stroke-width=\"0.5\"><title>{}\n{}\n{} at {}, "
          "steps {} to {}</title></rect></a>\n",
          number, b.first, kLeft + b.first * wide, y, (b.last - b.first + 1) * wide,
          static_cast<double>(b.bytes) * high, colour(maker.op), escaped(maker.op),
          escaped(maker.value), bytes_text(b.bytes), b.offset, b.first, b.last);
    }
    return out + axes(bytes, kLeft, kTop, kWidth, kHeight) + "</svg>\n";
  }

  std::string axes(size_t bytes, double left, double top, double width, double height) const {
    std::string out;
    for (int i = 0; i <= 4; ++i) {
      const double y = top + height - height * i / 4;
      out += fmt::format("<text x=\"{}\" y=\"{:.2f}\" text-anchor=\"end\">{}</text>\n", left - 6,
                         y + 4, bytes_text(bytes * static_cast<size_t>(i) / 4));
    }
    const size_t steps = plan_.steps.size();
    for (size_t i = 0; i <= 4; ++i) {
      const size_t step = steps * i / 4;
      const double x = left + width * static_cast<double>(step) / static_cast<double>(steps);
      out += fmt::format("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x,
                         top + height + 16, step);
    }
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>\n",
                       left + width / 2, top + height + 30);
    if (plan_.backward_begin < steps) {
      const double x =
          left + width * static_cast<double>(plan_.backward_begin) / static_cast<double>(steps);
      out += fmt::format(
          "<line x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#a60\" "
          "stroke-dasharray=\"4 3\"/>\n<text x=\"{3:.2f}\" y=\"{4}\">backward</text>\n",
          x, top, top + height, x + 4, top + 10);
    }
    return out;
  }

  std::string place(const Place& p) const {
    if (p.buffer < 0) return "–";
    static constexpr const char* kNames[] = {"arena", "input", "constant", "state", "output"};
    const Buffer& b = plan_.buffers[static_cast<size_t>(p.buffer)];
    const char* name = kNames[static_cast<size_t>(b.storage)];
    if (b.storage == Storage::arena) return fmt::format("{} at {}", name, b.offset + p.offset);
    return fmt::format("{} {}", name, b.index);
  }

  std::string table(size_t number) const {
    std::string out =
        "<table><tr><th>step</th><th>operator</th><th>kernel</th><th>provider</th><th>reads</th>"
        "<th>makes</th><th>bytes</th><th>where</th><th>node</th></tr>\n";
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      const Step& step = plan_.steps[s];
      std::string reads, makes, where;
      for (int i = 0; step.node && i < step.node.input_count(); ++i) {
        const Value v = step.node.input(i);
        if (v) reads += fmt::format("%{}: {}<br>", escaped(v.name()), escaped(to_string(v.type())));
      }
      size_t bytes = step.copy_bytes;
      for (size_t k = 0; k < step.outputs.size(); ++k) {
        makes += escaped(value_of(step, k)) + "<br>";
        where += escaped(place(step.outputs[k])) + "<br>";
        if (step.node && step.outputs[k].buffer >= 0)
          bytes += bytes_of(step.node.output(static_cast<int>(k)));
      }
      out += fmt::format(
          "<tr id=\"p{}s{}\"{}><td class=\"n\">{}</td><td>{}</td><td>{}</td><td>{}</td>"
          "<td class=\"v\">{}</td><td class=\"v\">{}</td><td class=\"n\">{}</td>"
          "<td class=\"v\">{}</td><td class=\"v\">{}</td></tr>\n",
          number, s, step.phase == Phase::backward ? " class=\"backward\"" : "", s,
          escaped(op_of(step)), escaped(step.candidate), escaped(provider_of(step.device)), reads,
          makes, bytes, where, escaped(step.node ? step.node.name() : ""));
    }
    return out + "</table>\n";
  }

  static size_t bytes_of(Value v) { return v && v.type().concrete() ? v.type().nbytes() : 0; }

  const Plan& plan_;
  std::vector<Maker> made_by_;
};

}  // namespace

std::string to_html(std::span<const Plan* const> plans, std::string_view note) {
  std::string out(kHead);
  out += "<h1>Compiled graph</h1>\n";
  if (!note.empty()) out += fmt::format("<p class=\"note\">{}</p>\n", escaped(note));
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans.size() > 1) out += fmt::format("<h2>Part {} of {}</h2>\n", i + 1, plans.size());
    out += Page(*plans[i]).text(i);
  }
  return out + "</body></html>\n";
}

}  // namespace steep
