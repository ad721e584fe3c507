#include "ops/pattern.h"

#include <fmt/format.h>

#include "ops/build.h"
#include "runtime/logs.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Whether `op` is one of `ops`, a list separated by "|".
bool is_one_of(std::string_view op, std::string_view ops) {
  for (size_t bar = ops.find('|'); bar != std::string_view::npos; bar = ops.find('|')) {
    if (op == ops.substr(0, bar)) return true;
    ops.remove_prefix(bar + 1);
  }
  return op == ops;
}

bool is_one_value(Value a, Value b) {
  if (a == b) return true;
  const auto x = scalar_constant(a), y = scalar_constant(b);
  return x && y && *x == *y;
}

}  // namespace

/// Walks through the terms of a pattern and the nodes of a graph together.
class Matching {
 public:
  Matching(const Pattern& pattern, unsigned order, Match& result)
      : terms_(pattern.terms()), order_(order), result_(result) {}

  bool run(Node n) { return take_node(n.output(0), n); }

 private:
  /// Matches the next term and the terms below it. After a failure the matching must not continue.
  bool take(Value v) {
    const Term& term = terms_[at_];
    if (!v || (term.only && !only_read_here(v))) return false;
    if (term.kind == Term::Kind::node) {
      const Node n = v.producer();
      return n && n.output(0) == v && take_node(v, n);
    }
    ++at_;
    if (term.kind == Term::Kind::number) return scalar_constant(v) == term.number;
    return term.name.empty() || result_.capture(term.name, v, v.producer());
  }

  bool take_node(Value v, Node n) {
    const Term& term = terms_[at_++];
    if (!is_one_of(n.op(), term.op)) return false;
    if (!term.name.empty() && !result_.capture(term.name, v, n)) return false;
    for (int i = term.operands; i < n.input_count() && !term.more; ++i) {
      if (n.input(i)) return false;
    }
    const bool turned = term.any_order && (order_ >> term.order & 1) != 0;
    for (int i = 0; i < term.operands; ++i) {
      if (!take(n.input(turned ? 1 - i : i))) return false;
    }
    return true;
  }

  bool only_read_here(Value v) const {
    if (result_.readers_ == nullptr)
      throw InternalError({.what = "A pattern that says \"only\" is matched without readers."});
    return static_cast<bool>(result_.readers_->only(v));
  }

  std::span<const Term> terms_;
  size_t at_ = 0;
  unsigned order_;
  Match& result_;
};

Match Match::with(std::string_view name, Value v) const {
  Match more = *this;
  if (!more.capture(name, v, v ? v.producer() : Node()))
    throw InternalError({.what = "A name of a pattern has two values.", .node = std::string(name)});
  return more;
}

std::optional<double> Match::number(std::string_view name) const {
  return scalar_constant(find(name).value);
}

const Match::Capture& Match::find(std::string_view name) const {
  for (size_t i = 0; i < size_; ++i) {
    if (captures_[i].name == name) return captures_[i];
  }
  throw InternalError({.what = "A pattern has no such name.", .node = std::string(name)});
}

bool Match::capture(std::string_view name, Value v, Node n) {
  for (size_t i = 0; i < size_; ++i) {
    if (captures_[i].name == name) return is_one_value(captures_[i].value, v);
  }
  if (size_ == kMaxNames) throw InternalError({.what = "A pattern has too many names."});
  captures_[size_++] = {name, v, n};
  return true;
}

bool begins(const Pattern& pattern, Node n) { return is_one_of(n.op(), pattern.terms()[0].op); }

std::optional<Match> match_in_order(const Pattern& pattern, Node n, const Match& start,
                                    unsigned order) {
  Match result = start;
  return Matching(pattern, order, result).run(n) ? std::optional(result) : std::nullopt;
}

std::optional<Match> match(const Pattern& pattern, Node n, const Match& start) {
  std::optional<Match> result;
  match(pattern, n, start, [&](const Match& m) {
    result = m;
    return true;
  });
  return result;
}

std::optional<Match> match(const Pattern& pattern, Value v, const Match& start) {
  const Node n = v ? v.producer() : Node();
  return n && n.output(0) == v ? match(pattern, n, start) : std::nullopt;
}

void log_rule(std::string_view name, Node n) {
  if (logs(Log::patterns)) log(Log::patterns, fmt::format("{:<36} {}", name, n.name()));
}

}  // namespace steep
