// LinearRegressor, LinearClassifier: x Wᵀ + b.
#include <fmt/format.h>

#include <algorithm>

#include "model/import/ml.h"
#include "runtime/counted.h"

namespace steep {
namespace {

/// Throws ModelError unless the coefficients are `rows` rows of the same length, and there is one
/// intercept for each row, or none.
MlParts parts_of(const MlNode& node, int64_t rows) {
  const auto count = static_cast<int64_t>(node.floats("coefficients").size());
  const auto intercepts = static_cast<int64_t>(node.floats("intercepts").size());
  if (rows < 1 || count == 0 || count % rows != 0) {
    node.fail("The coefficients do not fit the number of results.",
              fmt::format("a multiple of {}, at least one for each", counted(rows, "coefficient")),
              counted(count, "coefficient"));
  }
  if (intercepts != 0 && intercepts != rows) {
    node.fail("The intercepts do not fit the number of results.", fmt::format("{}, or none", rows),
              counted(intercepts, "intercept"));
  }
  MlParts parts{{.attribute = "coefficients", .dims = {rows, count / rows}}};
  if (intercepts != 0) parts.push_back({.attribute = "intercepts", .dims = {rows}});
  return parts;
}

/// Adds "s", the scores.
void add_scores(MlFunction& f) {
  f.add_weight("coefficients");
  const bool shifts = f.add_weight("intercepts");
  f.body().add(fmt::format("xf = Cast <to = 1> (x)  s = Gemm <transB = 1> (xf, coefficients{})",
                           shifts ? ", intercepts" : ""));
}

/// The file writes the row of the second class negated as that of the first.
bool is_mirrored(const std::vector<float>& values) {
  const size_t half = values.size() / 2;
  if (half == 0 || values.size() % 2 != 0) return false;
  return std::equal(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(half),
                    values.begin() + static_cast<std::ptrdiff_t>(half),
                    [](float a, float b) { return a == -b; });
}

/// NONE, LOGISTIC or SOFTMAX. Throws ModelError for others.
std::string transform_of(const MlNode& node) {
  std::string transform = node.text("post_transform", "NONE");
  if (transform == "NONE" || transform == "LOGISTIC" || transform == "SOFTMAX") return transform;
  node.fail("The post_transform of a classifier is not supported.", "NONE, LOGISTIC or SOFTMAX",
            transform, "Export the classifier with its raw scores: post_transform NONE.");
}

}  // namespace

MlParts linear_regressor_parts(const MlNode& node) {
  const std::string transform = node.text("post_transform", "NONE");
  if (transform != "NONE") {
    node.fail("Runtimes disagree about the post_transform of a LinearRegressor.", "NONE", transform,
              "Export the model without it, and add the operator behind (Sigmoid, Softmax).");
  }
  return parts_of(node, node.integer("targets", 1));
}

Bindings import_linear_regressor(MlFunction& f) {
  linear_regressor_parts(f.node());
  add_scores(f);
  return f.inlined({"s"});
}

MlParts linear_classifier_parts(const MlNode& node) {
  const int64_t classes = class_count(node);
  const auto intercepts = static_cast<int64_t>(node.floats("intercepts").size());
  const std::string transform = transform_of(node);
  const bool one_row = classes == 2 && intercepts == 1;
  if (one_row && transform != "LOGISTIC") {
    node.fail(
        "Runtimes disagree about a classifier of two classes with a single row of "
        "coefficients and this post_transform.",
        "LOGISTIC, or a row for each class", transform,
        "Write a row for each class: the second, and the same negated in front of it.");
  }
  MlParts parts = parts_of(node, one_row ? 1 : classes);
  const bool mirrored = classes == 2 && !one_row && is_mirrored(node.floats("coefficients")) &&
                        (intercepts == 0 || is_mirrored(node.floats("intercepts")));
  for (MlPart& part : parts) {
    if (!mirrored) continue;
    part.dims[0] = 1;
    part.mirrored = true;
  }
  return parts;
}

// A classifier of two classes has one row that is trained. Its logistic probabilities, 1 - σ(s) and
// σ(s), are the softmax of 0 and s, so that a loss finds the scores.
Bindings import_linear_classifier(MlFunction& f) {
  const MlParts parts = linear_classifier_parts(f.node());
  const std::string transform = transform_of(f.node());
  const bool one = parts[0].dims[0] == 1;
  add_scores(f);
  ContribBody& body = f.body();
  if (one && transform == "LOGISTIC") {
    body.ints("sides", {0, 1, 0, 0});
    body.add("z = Pad (s, sides)  p = Softmax <axis = 1> (z)");
  } else {
    body.add(one ? "n = Neg (s)  z = Concat <axis = 1> (n, s)" : "z = Identity (s)");
    body.add(transform == "NONE"       ? "p = Identity (z)"
             : transform == "LOGISTIC" ? "p = Sigmoid (z)"
                                       : "p = Softmax <axis = 1> (z)");
  }
  if (f.wants(0)) body.add("i = ArgMax <axis = 1, keepdims = 0> (z)");
  return f.inlined({add_label(f), "p"});
}

}  // namespace steep
