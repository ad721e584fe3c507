// SVMRegressor, SVMClassifier: sums of a kernel at support vectors, which are rows of the data that
// the model was fitted to. The vectors stay; the coefficients and rho are weights.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/import/ml.h"
#include "runtime/counted.h"

namespace steep {
namespace {

constexpr const char* kRawScores =
    "Export with the raw scores (skl2onnx: probability=False, options={'raw_scores': True}).";

void check_transform(const MlNode& node) {
  const std::string transform = node.text("post_transform", "NONE");
  if (transform == "NONE") return;
  node.fail("The post_transform of a support vector machine is not supported.", "NONE", transform,
            kRawScores);
}

/// The number of columns of the support vectors. Throws ModelError unless they have `rows` rows.
int64_t check_vectors(const MlNode& node, int64_t rows) {
  const auto numbers = static_cast<int64_t>(node.floats("support_vectors").size());
  if (rows < 1 || numbers == 0 || numbers % rows != 0) {
    node.fail("The support vectors do not fit their number.",
              fmt::format("a multiple of {}", counted(rows, "number")), counted(numbers, "number"));
  }
  return numbers / rows;
}

void check_size(const MlNode& node, const char* attribute, int64_t expected) {
  const auto count = static_cast<int64_t>(node.floats(attribute).size());
  if (count == expected) return;
  node.fail(fmt::format("The numbers in {} do not fit the model.", attribute),
            fmt::format("{}", expected), fmt::format("{}", count));
}

/// Adds "k" [N, rows], the kernel at each support vector.
void add_kernel(MlFunction& f, int64_t rows) {
  const MlNode& node = f.node();
  const std::string kernel = node.text("kernel_type", "LINEAR");
  const std::vector<float> params = node.floats("kernel_params");
  if (kernel != "LINEAR" && params.size() != 3) {
    node.fail("A kernel has no parameters.", "gamma, coef0 and degree in kernel_params",
              counted(params.size(), "number"));
  }
  std::vector<float> vectors = node.floats("support_vectors");
  const auto columns = static_cast<size_t>(check_vectors(node, rows));
  ContribBody& body = f.body();
  body.add("xf = Cast <to = 1> (x)");
  if (kernel == "RBF") {
    // |x - v|² = |x|² - 2 x·v + |v|², relative to the mean of the vectors: far from the origin the
    // difference of the squares would have no digits left.
    std::vector<double> mean(columns, 0);
    for (size_t i = 0; i < vectors.size(); ++i) mean[i % columns] += vectors[i];
    std::vector<float> centre;
    for (const double sum : mean)
      centre.push_back(static_cast<float>(sum / static_cast<double>(rows)));
    std::vector<float> squares(static_cast<size_t>(rows), 0);
    for (size_t i = 0; i < vectors.size(); ++i) {
      vectors[i] -= centre[i % columns];
      squares[i / columns] += vectors[i] * vectors[i];
    }
    const std::string x = f.columns(0, "xf", static_cast<int64_t>(columns));
    f.floats("centre", centre);
    f.floats("vectors", vectors, rows);
    f.floats("squares", squares);
    f.floats("minus_two", {-2});
    f.floats("minus_gamma", {-params[0]});
    body.ints("last", {-1});
    body.add(fmt::format("d = Sub ({}, centre)  dd = Mul (d, d)", x));
    body.add(
        "of_x = ReduceSum <keepdims = 1> (dd, last)  dot = Gemm <transB = 1> (d, vectors)"
        "  cross = Mul (dot, minus_two)  both = Add (of_x, squares)  far = Add (both, cross)"
        "  distance = Relu (far)  e = Mul (distance, minus_gamma)  k = Exp (e)");
    return;
  }
  f.floats("vectors", vectors, rows);
  body.add("dot = Gemm <transB = 1> (xf, vectors)");
  if (kernel == "LINEAR") {
    body.add("k = Identity (dot)");
  } else if (kernel == "POLY" || kernel == "SIGMOID") {
    f.floats("gamma", {params[0]});
    f.floats("coef0", {params[1]});
    f.floats("degree", {std::trunc(params[2])});
    body.add("g = Mul (dot, gamma)  inner = Add (g, coef0)");
    body.add(kernel == "POLY" ? "k = Pow (inner, degree)" : "k = Tanh (inner)");
  } else {
    node.fail("The kernel is unknown.", "LINEAR, POLY, RBF or SIGMOID", kernel);
  }
}

/// The pairs of classes i < j, in the order of the scores.
struct Pairs {
  int64_t classes = 0, vectors = 0;
  Ints firsts;  ///< of each class: the index of its first support vector; and the end

  int64_t count() const { return classes * (classes - 1) / 2; }
};

/// Throws ModelError for numbers that do not fit each other.
Pairs pairs_of(const MlNode& node) {
  // So many numbers are made from the coefficients: for each pair one for each support vector.
  constexpr int64_t kMost = int64_t{1} << 24;
  check_transform(node);
  Pairs pairs{.classes = class_count(node), .firsts = {0}};
  if (!node.floats("prob_a").empty() || !node.floats("prob_b").empty()) {
    node.fail("The probabilities of a support vector machine cannot be trained.",
              "no prob_a and prob_b", "some", kRawScores);
  }
  const Ints per_class = node.ints("vectors_per_class");
  if (per_class.empty()) {
    node.fail("An SVMClassifier has no support vectors.", "vectors_per_class", "none",
              "Export a linear classifier as LinearClassifier.");
  }
  if (static_cast<int64_t>(per_class.size()) != pairs.classes) {
    node.fail("The number of classes does not fit vectors_per_class.",
              counted(pairs.classes, "number"), fmt::format("{}", per_class.size()));
  }
  for (const int64_t count : per_class) {
    if (count < 0 || count > kMost - pairs.firsts.back()) {
      node.fail("A class has an impossible number of support vectors.",
                fmt::format("0 to {} in all", kMost), fmt::format("{}", count));
    }
    pairs.firsts.push_back(pairs.firsts.back() + count);
  }
  pairs.vectors = pairs.firsts.back();
  // Votes have a number for each pair and each class.
  const int64_t per_pair = std::max(pairs.vectors, pairs.classes);
  if (pairs.classes > 4096 || per_pair > kMost / std::max<int64_t>(pairs.count(), 1)) {
    node.fail(
        "A support vector machine is too large to be imported.",
        fmt::format("at most {} products of pairs of classes and support vectors (or classes)",
                    kMost),
        fmt::format("{}, {}", counted(pairs.classes, "class"), counted(pairs.vectors, "vector")),
        "Train a smaller model.");
  }
  check_vectors(node, pairs.vectors);
  check_size(node, "coefficients", (pairs.classes - 1) * pairs.vectors);
  check_size(node, "rho", pairs.count());
  const std::vector<float> c = node.floats("coefficients");
  if (pairs.classes == 2 && std::all_of(c.begin(), c.end(), [](float w) { return w >= 0; })) {
    node.fail("Runtimes interpret two classes without a negative coefficient in another way.",
              "coefficients of both signs", "none below zero");
  }
  return pairs;
}

/// Adds "m" [pairs, vectors]: for classes i < j, row j - 1 of the coefficients at the vectors of i,
/// row i at those of j, and zeros.
void add_coefficients(MlFunction& f, const Pairs& p) {
  Ints at(static_cast<size_t>(p.count() * p.vectors), 0);
  std::vector<float> counts(at.size(), 0);
  int64_t pair = 0;
  for (int64_t i = 0; i < p.classes; ++i) {
    for (int64_t j = i + 1; j < p.classes; ++j, ++pair) {
      const auto take = [&](int64_t of_class, int64_t row) {
        const auto c = static_cast<size_t>(of_class);
        for (int64_t v = p.firsts[c]; v < p.firsts[c + 1]; ++v) {
          at[static_cast<size_t>(pair * p.vectors + v)] = row * p.vectors + v;
          counts[static_cast<size_t>(pair * p.vectors + v)] = 1;
        }
      };
      take(i, j - 1);
      take(j, i);
    }
  }
  f.add_weight("coefficients");
  f.add_weight("rho");
  f.body().ints("at", at);
  f.floats("counts", counts, p.count());
  f.body().ints("list", {-1});
  f.body().ints("shape", {p.count(), p.vectors});
  f.body().add(
      "flat = Reshape (coefficients, list)  gathered = Gather (flat, at)"
      "  table = Reshape (gathered, shape)  m = Mul (table, counts)");
}

/// Adds "i": each pair votes for one of its classes.
void add_votes(MlFunction& f, const Pairs& p) {
  std::vector<float> difference(static_cast<size_t>(p.count() * p.classes), 0);
  std::vector<float> against(static_cast<size_t>(p.classes), 0);
  size_t row = 0;
  for (int64_t i = 0; i < p.classes; ++i) {
    for (int64_t j = i + 1; j < p.classes; ++j, row += static_cast<size_t>(p.classes)) {
      difference[row + static_cast<size_t>(i)] = 1;
      difference[row + static_cast<size_t>(j)] = -1;
      against[static_cast<size_t>(j)] += 1;
    }
  }
  f.floats("difference", difference, p.count());
  f.floats("against", against);
  f.floats("zero", {0});
  f.body().add(
      "above = Greater (s, zero)  first = Cast <to = 1> (above)"
      "  votes = Gemm (first, difference, against)"
      "  i = ArgMax <axis = 1, keepdims = 0> (votes)");
}

}  // namespace

MlParts svm_regressor_parts(const MlNode& node) {
  check_transform(node);
  if (node.integer("one_class", 0) != 0) {
    node.fail("A one-class support vector machine returns 1 or -1, which has no gradient.",
              "one_class 0", "1", kRawScores);
  }
  const int64_t vectors = node.integer("n_supports", 0);
  const auto count = static_cast<int64_t>(node.floats("coefficients").size());
  if (count < 1 || vectors < 0 || (vectors != 0 && count != vectors)) {
    node.fail("The coefficients do not fit the number of support vectors.",
              fmt::format("{}", std::max<int64_t>(vectors, 1)), fmt::format("{}", count));
  }
  if (vectors != 0) check_vectors(node, vectors);
  check_size(node, "rho", 1);
  return {{.attribute = "coefficients", .dims = {1, count}}, {.attribute = "rho", .dims = {1}}};
}

Bindings import_svm_regressor(MlFunction& f) {
  svm_regressor_parts(f.node());
  f.add_weight("coefficients");
  f.add_weight("rho");
  const int64_t vectors = f.node().integer("n_supports", 0);
  if (vectors == 0) {
    f.body().add("k = Cast <to = 1> (x)");
  } else {
    add_kernel(f, vectors);
  }
  f.body().add("y = Gemm <transB = 1> (k, coefficients, rho)");
  return f.inlined({"y"});
}

MlParts svm_classifier_parts(const MlNode& node) {
  const Pairs pairs = pairs_of(node);
  return {{.attribute = "coefficients", .dims = {pairs.classes - 1, pairs.vectors}},
          {.attribute = "rho", .dims = {pairs.count()}}};
}

Bindings import_svm_classifier(MlFunction& f) {
  const Pairs pairs = pairs_of(f.node());
  add_kernel(f, pairs.vectors);
  add_coefficients(f, pairs);
  f.body().add("s = Gemm <transB = 1> (k, m, rho)");
  if (f.wants(0)) add_votes(f, pairs);
  if (pairs.classes > 2) return f.inlined({add_label(f), "s"});
  f.body().add("n = Neg (s)  z = Concat <axis = 1> (n, s)");
  return f.inlined({add_label(f), "z"});
}

}  // namespace steep
