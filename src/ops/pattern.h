// Patterns over graphs, for passes: a pattern is the text of the expression that it matches.
//
//   constexpr Pattern kSum("Add{base, slices: only steep.GatherGrad(dy, indices, shape)}");
//
//   if (const auto m = match(kSum, node, Match(readers))) add_to((*m)["base"], m->node("slices"));
//
//   Op(a, b)     a node of this operator, with exactly these operands
//   Op(a, ...)   any further operands may follow
//   Op{a, b}     two operands in any order; the written order is tried first
//   A|B(a)       a node of either operator
//   name: Op(a)  captures the node and its first output
//   name         captures any value; a name used twice must match the same value twice
//   _            any value
//   0.5          a constant with one element of that value
//   only Op(a)   a value that only the match reads, once, and that is no output of the graph
//
// A node as operand means its first output. Absent operands match nothing. One-element constants
// with the same number count as the same value, because exporters write each of them anew. The
// compiler parses the text; a malformed pattern does not compile.
//
// LLVM's PatternMatch.h and XLA's pattern_matcher.h build such patterns from templates that bind
// captures to variables. As text, patterns are data: passes have tables of them (PatternRule), and
// a table can be printed, logged and tested rule by rule, like MLIR's declarative rewrite rules.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/readers.h"

namespace steep {

/// A term of a pattern.
struct Term {
  enum class Kind : uint8_t { value, number, node };

  Kind kind = Kind::value;
  bool only = false;
  bool any_order = false;
  bool more = false;     ///< ends in "..."
  uint8_t operands = 0;  ///< of a node: number of operand terms; their subterms follow each of them
  uint8_t order = 0;     ///< of a node with unordered operands: its bit in `order`
  double number = 0;     ///< of a number
  std::string_view op{};    ///< of a node: operators, separated by "|"
  std::string_view name{};  ///< name of the capture; empty: no capture
};

class Pattern {
 public:
  static constexpr size_t kMaxTerms = 24;

  consteval Pattern(const char* text) : text_(text) {
    const char* at = text;
    read_term(at);
    if (*at != '\0' || terms_[0].kind != Term::Kind::node) cannot_read("an operator is expected");
    for (Term& term : terms_) {  // the first operands swap last
      if (term.any_order) term.order = static_cast<uint8_t>(orders_of_operands_ - 1 - term.order);
    }
  }

  std::string_view text() const { return text_; }
  /// The terms in the order of the text. The first term is a node.
  std::span<const Term> terms() const { return {terms_.data(), size_}; }
  /// The number of operand orders to try.
  unsigned orders() const { return 1U << orders_of_operands_; }

 private:
  /// Not constexpr, so that compilation of a malformed pattern fails here with the reason.
  static void cannot_read(const char* why);

  static constexpr bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '|';
  }
  static constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

  static constexpr void skip_blanks(const char*& at) {
    while (*at == ' ' || *at == '\n') ++at;
  }

  static constexpr bool take(const char*& at, char c) {
    skip_blanks(at);
    if (*at != c) return false;
    ++at;
    return true;
  }

  static constexpr std::string_view word(const char*& at) {
    skip_blanks(at);
    const char* from = at;
    while (is_letter(*at)) ++at;
    return {from, at};
  }

  static constexpr double number(std::string_view digits) {
    double value = 0, place = 0;
    for (const char c : digits) {
      if (c == '.' && place == 0) {
        place = 1;
      } else if (is_digit(c)) {
        value = value * 10 + (c - '0');
        place *= 10;
      } else {
        cannot_read("a number has digits and at most one point");
      }
    }
    return place == 0 ? value : value / place;
  }

  constexpr void read_term(const char*& at) {
    if (size_ == kMaxTerms) cannot_read("too many terms");
    Term& term = terms_[size_++];
    std::string_view token = word(at);
    if (token == "only") {
      term.only = true;
      token = word(at);
    }
    if (take(at, ':')) {
      term.name = token;
      token = word(at);
      if (*at != '(' && *at != '{') cannot_read("after a colon an operator is expected");
    }
    if (token.empty()) cannot_read("a term is expected");
    if (take(at, '(')) {
      term.op = token;
      read_operands(at, term, ')');
    } else if (take(at, '{')) {
      term.op = token;
      term.any_order = true;
      term.order = orders_of_operands_++;
      read_operands(at, term, '}');
      if (term.operands != 2 || term.more) cannot_read("two operands are expected");
    } else if (is_digit(token[0])) {
      term.kind = Term::Kind::number;
      term.number = number(token);
    } else if (token != "_") {
      term.name = token;
    }
  }

  constexpr void read_operands(const char*& at, Term& term, char end) {
    term.kind = Term::Kind::node;
    while (!term.more) {
      skip_blanks(at);
      if (std::string_view(at).starts_with("...")) {
        at += 3;
        term.more = true;
      } else {
        read_term(at);
        ++term.operands;
      }
      if (!take(at, ',')) break;
    }
    if (!take(at, end)) cannot_read("the operands have no end");
  }

  std::string_view text_;
  std::array<Term, kMaxTerms> terms_{};
  uint8_t size_ = 0, orders_of_operands_ = 0;
};

/// The values of names: those given in advance, and those that a pattern captured.
class Match {
 public:
  static constexpr size_t kMaxNames = 12;

  Match() = default;
  /// Required for patterns with "only". `readers` must outlive the match.
  explicit Match(const Readers& readers) : readers_(&readers) {}

  /// A copy with one more name. A pattern that uses the name must match `v` there.
  Match with(std::string_view name, Value v) const;

  /// Throws InternalError when the pattern has no such name; so do node() and number().
  Value operator[](std::string_view name) const { return find(name).value; }
  /// The node that makes the value; null if no node does.
  Node node(std::string_view name) const { return find(name).node; }
  /// scalar_constant() of the value.
  std::optional<double> number(std::string_view name) const;

 private:
  friend class Matching;

  struct Capture {
    std::string_view name{};
    Value value{};
    Node node{};
  };

  const Capture& find(std::string_view name) const;
  /// Returns false when the name already has another value.
  bool capture(std::string_view name, Value v, Node n);

  const Readers* readers_ = nullptr;
  std::array<Capture, kMaxNames> captures_{};
  size_t size_ = 0;
};

/// Whether the node's operator is that of the pattern's root.
bool begins(const Pattern& pattern, Node n);

/// Matches the pattern at `n` with operands in order number `order` of pattern.orders(). Returns
/// `start` with the captures added, or nothing when the pattern does not match.
std::optional<Match> match_in_order(const Pattern& pattern, Node n, const Match& start,
                                    unsigned order);

/// Tries all orders of operands until the pattern matches and `accept` returns true for the match.
template <typename Accept>
bool match(const Pattern& pattern, Node n, const Match& start, Accept&& accept) {
  if (!n || !begins(pattern, n)) return false;
  for (unsigned order = 0; order < pattern.orders(); ++order) {
    const std::optional<Match> m = match_in_order(pattern, n, start, order);
    if (m && accept(*m)) return true;
  }
  return false;
}

/// The first match. A null node matches nothing.
std::optional<Match> match(const Pattern& pattern, Node n, const Match& start = Match());
/// Matches at the node whose first output is `v`; nothing when there is no such node.
std::optional<Match> match(const Pattern& pattern, Value v, const Match& start = Match());

/// A rule of a pass's table.
template <typename... Args>
struct PatternRule {
  std::string_view name;    ///< "pass/name of the match"
  std::string_view reason;  ///< what the rewrite is good for, in one sentence
  Pattern pattern;
  /// Applies the rewrite to a match, or returns false and changes nothing; then the next order of
  /// operands and the next rule are tried. Null for rules that only match.
  bool (*then)(const Match& m, Args... args) = nullptr;
};

/// The printable part of a rule.
struct PatternRuleInfo {
  std::string_view name, reason, pattern;
};

/// Lists the rules of tables. They must have name, reason and pattern.
template <typename... Tables>
std::vector<PatternRuleInfo> list_rules(const Tables&... tables) {
  std::vector<PatternRuleInfo> list;
  const auto add = [&](const auto& rules) {
    for (const auto& rule : rules) list.push_back({rule.name, rule.reason, rule.pattern.text()});
  };
  (add(tables), ...);
  return list;
}

/// Logs a rewrite under STEEP_LOGS=patterns.
void log_rule(std::string_view name, Node n);

/// The first rule of the table that matches at `n` and accepts the match; null when there is none.
template <typename AnyRule, size_t kCount, typename... Args>
const AnyRule* apply_rules(const AnyRule (&rules)[kCount], Node n, const Match& start,
                           Args&&... args) {
  for (const AnyRule& rule : rules) {
    const auto accept = [&](const Match& m) {
      return rule.then == nullptr || rule.then(m, args...);
    };
    if (match(rule.pattern, n, start, accept)) {
      log_rule(rule.name, n);
      return &rule;
    }
  }
  return nullptr;
}

}  // namespace steep
