// What leads to labels: the classes of classifiers, and ArrayFeatureExtractor, which picks columns.
#include <fmt/format.h>

#include "model/import/ml.h"

namespace steep {

int64_t class_count(const MlNode& node) {
  const auto ints = static_cast<int64_t>(
      node.ints(node.has("classlabels_int64s") ? "classlabels_int64s" : "classlabels_ints").size());
  const auto strings = static_cast<int64_t>(node.string_count("classlabels_strings"));
  if (ints != 0 && strings != 0) {
    node.fail("A classifier has two lists of classes.", "numbers or strings", "both");
  }
  if (ints + strings < 2) {
    node.fail("A classifier has too few classes.", "at least 2", fmt::format("{}", ints + strings));
  }
  return ints + strings;
}

std::string add_label(MlFunction& f) {
  const Ints classes = f.node().ints("classlabels_ints");
  if (!f.wants(0) || classes.empty()) return "";
  f.body().ints("classes", classes);
  f.body().add("label = Gather (classes, i)");
  return "label";
}

// Columns of the last axis. The result has a row at least, also for a single list.
Bindings import_array_feature_extractor(MlFunction& f) {
  const Type& x = f.type(0);
  f.type(1);
  if (!x.shape || x.shape->empty()) {
    f.node().fail("The rank of an input is not known.", "a rank of at least 1", to_string(x),
                  "Export the model with the shapes of its inputs.");
  }
  f.body().ints("flat", {-1});
  f.body().add("at = Reshape (x1, flat)  picked = Gather <axis = -1> (x, at)");
  if (x.shape->size() > 1) return f.inlined({"picked"});
  f.body().ints("front", {0});
  f.body().add("row = Unsqueeze (picked, front)");
  return f.inlined({"row"});
}

}  // namespace steep
