#include "train/exporter_ties.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ir/readers.h"

namespace steep {
namespace {

constexpr const char* kRemedy =
    "If the exported model does not do so, export it without optimisations: "
    "torch.onnx.export(..., dynamo=True, optimize=False).";

const std::byte* element(const Tensor& t, int64_t index) {
  return static_cast<const std::byte*>(t.data()) + index * static_cast<int64_t>(size_of(t.dtype()));
}

bool same(const Tensor& a, int64_t i, const Tensor& b, int64_t j) {
  return std::memcmp(element(a, i), element(b, j), size_of(a.dtype())) == 0;
}

/// As a new bias or gain: of several equal elements.
bool is_uniform(const Tensor& t) {
  for (int64_t i = 1; i < t.size(); ++i) {
    if (!same(t, i, t, 0)) return false;
  }
  return t.size() > 1;
}

bool are_equal(const Tensor& a, const Tensor& b) {
  return a.dims() == b.dims() && std::memcmp(a.data(), b.data(), a.nbytes()) == 0;
}

bool are_transposed(const Tensor& a, const Tensor& b) {
  const int64_t rows = a.dims()[0], columns = a.dims()[1];
  if (b.dims() != Dims{columns, rows}) return false;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      if (!same(a, i * columns + j, b, j * rows + i)) return false;
    }
  }
  return true;
}

/// Whether rows of the parameter are looked up by index, as those of a table of words.
bool is_table(Value parameter, const Readers& readers) {
  const std::vector<Node>& nodes = readers.of(parameter);
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](Node n) { return n.op() == "Gather" && n.input(0) == parameter; });
}

bool is_read_twice(Value parameter, const Readers& readers) {
  const std::vector<Node>& nodes = readers.of(parameter);
  return std::count_if(nodes.begin(), nodes.end(), [](Node n) { return n.op() != "Shape"; }) > 1;
}

bool may_be_a_copy(Value v) {
  return v.tensor() != nullptr && v.tensor()->data() != nullptr && v.tensor()->dims().size() == 2 &&
         v.tensor()->size() > 1 && !is_uniform(*v.tensor());
}

/// What is said of two parameters of which one may be a copy of the other; "" otherwise.
std::string doubt_of_copies(Value a, Value b, const Readers& readers) {
  const Tensor &left = *a.tensor(), &right = *b.tensor();
  if (left.dtype() != right.dtype()) return "";
  const bool equal = is_table(a, readers) != is_table(b, readers) && are_equal(left, right);
  if (!equal && !are_transposed(left, right)) return "";
  return fmt::format(
      "'{}' is {} of '{}'. Exporters copy a weight that a model uses twice; this file has two, "
      "which are trained independently. {}",
      b.name(), equal ? "a copy" : "the transpose", a.name(), kRemedy);
}

}  // namespace

void add_doubtful_ties(const Graph& graph, std::span<const Value> parameters,
                       std::vector<std::string>& warnings) {
  const Readers readers(graph);
  std::vector<std::string> merged;
  std::vector<Value> matrices;
  for (Value v : parameters) {
    if (is_read_twice(v, readers) && v.tensor() != nullptr && v.tensor()->data() != nullptr &&
        is_uniform(*v.tensor())) {
      merged.push_back(fmt::format("'{}'", v.name()));
    }
    if (may_be_a_copy(v)) matrices.push_back(v);
  }
  if (!merged.empty()) {
    warnings.push_back(fmt::format(
        "Several layers read {} as one weight, whose elements are all equal. Exporters merge "
        "weights that start with equal values, such as those of normalisations; they are then "
        "trained as one. {}",
        fmt::join(merged, ", "), kRemedy));
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    for (size_t j = i + 1; j < matrices.size(); ++j) {
      std::string doubt = doubt_of_copies(matrices[i], matrices[j], readers);
      if (!doubt.empty()) warnings.push_back(std::move(doubt));
    }
  }
}

}  // namespace steep
