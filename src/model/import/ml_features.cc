// Preparation of features: Scaler, Normalizer, Imputer, Binarizer, FeatureVectorizer.
#include <fmt/format.h>

#include <cmath>

#include "model/import/ml.h"
#include "ops/op_def.h"
#include "runtime/counted.h"

namespace steep {
namespace {

/// Throws ModelError unless there is one number, or one for each column.
void check_count(const MlFunction& f, const char* attribute, size_t count) {
  if (count != 0) return;
  f.node().fail(fmt::format("The node has no {}.", attribute), "one number, or one for each column",
                "none");
}

/// What made `v`, where it is not only handed on.
Node maker(Value v) {
  Node n = v.producer();
  while (n && (n.op() == "Identity" || (n.op() == "Cast" && is_float(n.output(0).dtype()))))
    n = n.input(0).producer();
  return n;
}

bool over_columns(Node softmax, int64_t rank) {
  const int64_t axis = integer_of(softmax, "axis");
  return axis == -1 || axis == rank - 1;
}

}  // namespace

// (x - offset) scale
Bindings import_scaler(MlFunction& f) {
  const std::vector<float> offset = f.node().floats("offset"), scale = f.node().floats("scale");
  check_count(f, "offset", offset.size());
  check_count(f, "scale", scale.size());
  if (offset.size() != scale.size() && offset.size() != 1 && scale.size() != 1) {
    f.node().fail("The numbers of a Scaler do not fit each other.", counted(scale.size(), "offset"),
                  fmt::format("{}", offset.size()));
  }
  const size_t count = std::max(offset.size(), scale.size());
  const std::string x = count == 1 ? "x" : f.columns(0, "x", static_cast<int64_t>(count));
  f.floats("offset", offset);
  f.floats("scale", scale);
  f.body().add(fmt::format("xf = Cast <to = 1> ({})  d = Sub (xf, offset)  y = Mul (d, scale)", x));
  return f.inlined({"y"});
}

// Rows divided by a norm; rows of zeros stay. MAX is the greatest number, as in the standard and in
// ONNX Runtime, not the greatest magnitude.
Bindings import_normalizer(MlFunction& f) {
  const std::string norm = f.node().text("norm", "MAX");
  const Type& type = f.type(0);
  const auto rank = type.shape ? static_cast<int64_t>(type.shape->size()) : 0;
  const Node made = maker(f.value(0));
  if (norm == "L1" && made && made.op() == "Softmax" && over_columns(made, rank)) {
    f.body().add("y = Cast <to = 1> (x)");  // sums to one already
    return f.inlined({"y"});
  }
  f.body().ints("last", {-1});
  if (norm == "L1" && made && made.op() == "Sigmoid") {
    // σ(s) / Σ σ(s) = softmax(log σ(s)): a loss on probabilities finds the scores.
    f.set_value(0, made.input(0));
    f.body().add(
        "xf = Cast <to = 1> (x)  n = Neg (xf)  q = Softplus (n)  l = Neg (q)"
        "  y = Softmax <axis = -1> (l)");
    return f.inlined({"y"});
  }
  f.body().add("xf = Cast <to = 1> (x)");
  if (norm == "L1") {
    f.body().add("m = Abs (xf)  total = ReduceSum <keepdims = 1> (m, last)");
  } else if (norm == "L2") {
    f.body().add("m = Mul (xf, xf)  total = ReduceSum <keepdims = 1> (m, last)");
  } else if (norm == "MAX") {
    f.body().add("total = ReduceMax <keepdims = 1> (xf, last)");
  } else {
    f.node().fail("The norm is unknown.", "MAX, L1 or L2", norm);
  }
  f.body().scalar("none", 0, "xf");
  f.body().scalar("one", 1, "xf");
  f.body().add("empty = Equal (total, none)  safe = Where (empty, one, total)");
  f.body().add(norm == "L2" ? "size = Sqrt (safe)" : "size = Identity (safe)");
  f.body().add("y = Div (xf, size)");
  return f.inlined({"y"});
}

// NaN, or another number, is replaced by a number for its column.
Bindings import_imputer(MlFunction& f) {
  const std::vector<float> values = f.node().floats("imputed_value_floats");
  if (values.empty()) {
    f.node().fail("Only an Imputer of floats is supported.", "imputed_value_floats",
                  f.node().has("imputed_value_int64s") ? "imputed_value_int64s" : "none",
                  "Export the model for inputs of float32.");
  }
  if (!is_float(f.type(0).dtype)) {
    f.node().fail("An Imputer of floats has another input.", "floats", to_string(f.type(0)));
  }
  const std::string x =
      values.size() == 1 ? "x" : f.columns(0, "x", static_cast<int64_t>(values.size()));
  const float replaced = f.node().real("replaced_value_float", 0);
  f.floats("values", values);
  f.body().add(fmt::format("xf = Cast <to = 1> ({})", x));
  if (std::isnan(replaced)) {
    f.body().add("missing = IsNaN (xf)");
  } else {
    f.floats("replaced", {replaced});
    f.body().add("missing = Equal (xf, replaced)");
  }
  f.body().add("y = Where (missing, values, xf)");
  return f.inlined({"y"});
}

Bindings import_binarizer(MlFunction& f) {
  f.type(0);
  f.floats("threshold", {f.node().real("threshold", 0)});
  f.body().add(
      "xf = Cast <to = 1> (x)  above = Greater (xf, threshold)  y = Cast <to = 1> (above)");
  return f.inlined({"y"});
}

// Columns of several inputs side by side.
Bindings import_feature_vectorizer(MlFunction& f) {
  const Ints widths = f.node().ints("inputdimensions");
  const auto count = static_cast<size_t>(f.node().proto().input_size());
  if (widths.size() != count || count == 0) {
    f.node().fail("The inputs of a FeatureVectorizer do not fit its inputdimensions.",
                  counted(widths.size(), "input"), fmt::format("{}", count));
  }
  std::string list;
  for (size_t i = 0; i < count; ++i) {
    const std::string name = i == 0 ? "x" : fmt::format("x{}", i);
    f.body().add(fmt::format("f{} = Cast <to = 1> ({})", i, f.columns(i, name, widths[i])));
    list += fmt::format("{}f{}", i == 0 ? "" : ", ", i);
  }
  f.body().add(fmt::format("y = Concat <axis = -1> ({})", list));
  return f.inlined({"y"});
}

}  // namespace steep
