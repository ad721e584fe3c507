// Einsum: operands are contracted from left to right, two at a time, each time as one matrix
// product over the labels that nothing else reads.
#include <algorithm>
#include <map>

#include "ops/positions.h"
#include "ops/steep_types.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

/// A letter, or an axis under an ellipsis: kEllipsis + the axis's index counted from the right.
using Label = int;
using Labels = std::vector<Label>;
constexpr Label kEllipsis = 256;

struct Equation {
  std::vector<Labels> inputs;
  Labels output;
};

bool has(const Labels& labels, Label label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

[[noreturn]] void refuse(Node n, const char* what, const std::string& expected) {
  throw ShapeError({.what = what,
                    .node = n.name(),
                    .op = n.op(),
                    .expected = expected,
                    .received = "\"" + text_of(n, "equation") + "\"",
                    .remedy = "Check the equation against the inputs' shapes."});
}

/// The labels of one term. `hidden`: the number of axes under its ellipsis.
Labels labels_of(Node n, std::string_view term, int64_t hidden) {
  Labels labels;
  for (size_t i = 0; i < term.size(); ++i) {
    if (term.substr(i, 3) == "...") {
      for (int64_t k = hidden; k-- > 0;) labels.push_back(kEllipsis + static_cast<Label>(k));
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(term[i])) != 0) {
      labels.push_back(term[i]);
    } else {
      refuse(n, "An equation has an invalid character.", "letters, commas, \"...\", \"->\"");
    }
  }
  return labels;
}

/// The implicit output: the ellipsis, then the letters that occur once, in alphabetical order.
Labels implicit_output(const std::vector<Labels>& inputs, int64_t hidden) {
  std::map<Label, int> counts;
  for (const Labels& labels : inputs) {
    for (Label label : labels) ++counts[label];
  }
  Labels output;
  for (int64_t k = hidden; k-- > 0;) output.push_back(kEllipsis + static_cast<Label>(k));
  for (const auto& [label, count] : counts) {
    if (label < kEllipsis && count == 1) output.push_back(label);
  }
  return output;
}

Equation parse(Node n) {
  std::string text = text_of(n, "equation");
  std::erase(text, ' ');
  const size_t arrow = text.find("->");
  std::vector<std::string> terms{""};
  for (char c : text.substr(0, arrow)) {
    if (c == ',') {
      terms.emplace_back();
    } else {
      terms.back() += c;
    }
  }
  if (terms.size() != static_cast<size_t>(n.input_count()))
    refuse(n, "The number of terms of an equation differs from the number of inputs.",
           counted(n.input_count(), "term"));
  Equation equation;
  int64_t most_hidden = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    const int64_t rank = n.input(static_cast<int>(i)).rank();
    const bool hides = terms[i].find("...") != std::string::npos;
    const int64_t hidden = hides ? rank - static_cast<int64_t>(terms[i].size()) + 3 : 0;
    equation.inputs.push_back(labels_of(n, terms[i], std::max<int64_t>(hidden, 0)));
    if (static_cast<int64_t>(equation.inputs.back().size()) != rank)
      refuse(n, "A term of an equation does not match its input.",
             "one label for each axis of " + to_string(n.input(static_cast<int>(i)).type()));
    most_hidden = std::max(most_hidden, hidden);
  }
  equation.output = arrow == std::string::npos ? implicit_output(equation.inputs, most_hidden)
                                               : labels_of(n, text.substr(arrow + 2), most_hidden);
  for (size_t i = 0; i < equation.output.size(); ++i) {
    const Label label = equation.output[i];
    const bool known = std::any_of(equation.inputs.begin(), equation.inputs.end(),
                                   [&](const Labels& in) { return has(in, label); });
    if (!known || std::count(equation.output.begin(), equation.output.end(), label) != 1)
      refuse(n, "The output term of an equation is not valid.", "labels of inputs, each once");
  }
  return equation;
}

/// A value whose axes have labels.
struct Term {
  Value x;
  Labels labels;

  int64_t axis(Label label) const {
    return std::find(labels.begin(), labels.end(), label) - labels.begin();
  }
};

Term arranged(const Term& t, const Labels& order) {
  Ints perm;
  for (Label label : order) perm.push_back(t.axis(label));
  return {std::is_sorted(perm.begin(), perm.end()) ? t.x : transpose(t.x, perm), order};
}

/// Replaces the two axes that share a label by their diagonal: with both axes last, every (n + 1)th
/// element of the flattened pair.
Term diagonal(const Term& t, Label label) {
  Ints perm;
  Labels labels;
  for (size_t i = 0; i < t.labels.size(); ++i) {
    if (t.labels[i] == label) continue;
    perm.push_back(static_cast<int64_t>(i));
    labels.push_back(t.labels[i]);
  }
  std::vector<Value> extents;
  for (int64_t axis : perm) extents.push_back(as_vector(extent_of(t.x, axis)));
  Ints twins;
  for (size_t i = 0; i < t.labels.size(); ++i) {
    if (t.labels[i] == label && twins.size() < 2) {
      twins.push_back(static_cast<int64_t>(i));
    } else if (t.labels[i] == label) {
      perm.push_back(static_cast<int64_t>(i));
      labels.push_back(label);
      extents.push_back(as_vector(extent_of(t.x, static_cast<int64_t>(i))));
    }
  }
  perm.insert(perm.end(), twins.begin(), twins.end());
  labels.push_back(label);
  Value size = extent_of(t.x, twins[0]);
  extents.push_back(as_vector(size * size));
  Value rows = reshape(transpose(t.x, perm), concat(extents, 0));
  Graph& g = rows.graph();
  return {apply("Slice",
                {rows, ints(g, {0}), ints(g, {INT64_MAX}), ints(g, {-1}), as_vector(size + 1)}),
          labels};
}

Term summed(const Term& t, const Labels& away) {
  Ints axes;
  Labels rest;
  for (size_t i = 0; i < t.labels.size(); ++i) {
    if (has(away, t.labels[i])) {
      axes.push_back(static_cast<int64_t>(i));
    } else {
      rest.push_back(t.labels[i]);
    }
  }
  return {axes.empty() ? t.x : sum(t.x, axes, false), rest};
}

/// Transposes and reshapes so that each group of axes becomes one axis.
Value merged(const Term& t, const std::vector<Labels>& groups) {
  Labels order;
  bool as_they_are = true;
  for (const Labels& group : groups) {
    order.insert(order.end(), group.begin(), group.end());
    as_they_are = as_they_are && group.size() == 1;
  }
  Value x = arranged(t, order).x;
  if (as_they_are) return x;
  std::vector<Value> extents;
  for (const Labels& group : groups) {
    Value extent = scalar(x.graph(), 1, DType::i64);
    for (size_t i = 0; i < group.size(); ++i) {
      Value own = extent_of(t.x, t.axis(group[i]));
      extent = i == 0 ? own : extent * own;
    }
    extents.push_back(as_vector(extent));
  }
  return reshape(x, concat(extents, 0));
}

/// Multiplies a and b over all shared labels and sums over those in `away`.
Term contract(const Term& a, const Term& b, const Labels& away) {
  Labels batch, left, right, shared;
  for (Label label : a.labels) {
    (!has(b.labels, label) ? left : has(away, label) ? shared : batch).push_back(label);
  }
  for (Label label : b.labels) {
    if (!has(a.labels, label)) right.push_back(label);
  }
  std::vector<Labels> of_a, of_b;
  for (Label label : batch) of_a.push_back({label}), of_b.push_back({label});
  of_a.insert(of_a.end(), {left, shared});
  of_b.insert(of_b.end(), {shared, right});
  Value y = matmul(merged(a, of_a), merged(b, of_b));
  Labels labels = batch;
  labels.insert(labels.end(), left.begin(), left.end());
  labels.insert(labels.end(), right.begin(), right.end());
  if (left.size() == 1 && right.size() == 1) return {y, labels};
  std::vector<Value> extents;
  for (size_t i = 0; i < batch.size(); ++i)
    extents.push_back(as_vector(extent_of(y, static_cast<int64_t>(i))));
  for (Label label : left) extents.push_back(as_vector(extent_of(a.x, a.axis(label))));
  for (Label label : right) extents.push_back(as_vector(extent_of(b.x, b.axis(label))));
  if (extents.empty()) return {reshape(y, Ints{}), labels};
  return {reshape(y, concat(extents, 0)), labels};
}

std::vector<Value> einsum_decompose(Node n) {
  const Equation equation = parse(n);
  const DType dtype = n.output(0).dtype();
  const bool small = is_integer(dtype) && bits_of(dtype) < 32;
  std::vector<Term> terms;
  for (size_t i = 0; i < equation.inputs.size(); ++i) {
    Value x = n.input(static_cast<int>(i));
    Term t{small ? cast(x, DType::i32) : x, equation.inputs[i]};
    for (Label label : equation.inputs[i]) {
      while (std::count(t.labels.begin(), t.labels.end(), label) > 1) t = diagonal(t, label);
    }
    terms.push_back(t);
  }
  // The labels in `labels` that neither the output nor the terms from `next` on read.
  auto only = [&](const Labels& labels, size_t next) {
    Labels away;
    for (Label label : labels) {
      bool read = has(equation.output, label) || label >= kEllipsis;
      for (size_t i = next; i < terms.size(); ++i) read = read || has(terms[i].labels, label);
      if (!read) away.push_back(label);
    }
    return away;
  };
  Term all = summed(terms[0], only(terms[0].labels, 1));
  for (size_t i = 1; i < terms.size(); ++i) {
    Labels own;
    for (Label label : only(terms[i].labels, i + 1)) {
      if (!has(all.labels, label)) own.push_back(label);
    }
    const Term next = summed(terms[i], own);
    all = contract(all, next, only(all.labels, i + 1));
  }
  Labels hidden;  // labels under an ellipsis that the output does not have
  for (Label label : all.labels) {
    if (!has(equation.output, label)) hidden.push_back(label);
  }
  Value y = arranged(summed(all, hidden), equation.output).x;
  return {small ? cast(y, dtype) : y};
}

std::vector<Type> einsum_infer(Node n) {
  for (int i = 0; i < n.input_count(); ++i) {
    if (!shape_if_known(n.input(i))) return {{n.input(0).dtype(), {}}};
  }
  const Equation equation = parse(n);
  std::map<Label, Dim> extents;
  for (size_t i = 0; i < equation.inputs.size(); ++i) {
    const Shape& shape = n.input(static_cast<int>(i)).shape();
    for (size_t k = 0; k < shape.size(); ++k) {
      auto [at, fresh] = extents.emplace(equation.inputs[i][k], shape[k]);
      const Dim had = at->second;
      if (fresh || provably_equal(had, shape[k])) continue;
      const bool hidden = equation.inputs[i][k] >= kEllipsis;
      if (had.known() && shape[k].known() &&
          (!hidden || (had.value() != 1 && shape[k].value() != 1)))
        refuse(n, "Axes of one label differ in extent.", to_string(Shape{had}));
      if (shape[k].known() && (!had.known() || had.value() == 1)) at->second = shape[k];
    }
  }
  Shape shape;
  for (Label label : equation.output) shape.push_back(extents.at(label));
  return {{n.input(0).dtype(), shape}};
}

}  // namespace

extern const OpDef kEinsum = {.name = "Einsum",
                              .attributes = {{"equation", ""}},
                              .infer = einsum_infer,
                              .decompose = einsum_decompose};

}  // namespace steep
