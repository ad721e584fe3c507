#include "program/rows_inputs.h"

#include <fmt/format.h>

#include "autodiff/read_rows.h"
#include "flow/rows.h"
#include "ir/part.h"
#include "ir/seed.h"
#include "ops/op_def.h"
#include "program/program.h"

namespace steep {
CountedRowsInputs::CountedRowsInputs() = default;
CountedRowsInputs::~CountedRowsInputs() = default;

std::optional<Graph> CountedRowsInputs::split_off(Graph& graph, const ProgramOptions& options) {
  std::unordered_map<uint32_t, size_t> place;  // index among the caller's inputs, by value id
  for (Value v : graph.inputs()) {
    if (!is_seed(v) && graph.input_phase(v) == Phase::forward) place.emplace(v.id(), place.size());
  }
  std::unordered_set<uint32_t> makers;
  std::vector<Value> labels;  // computed by makers; in the order of the labels program's outputs
  std::vector<Node> split;
  for (Node n : graph.nodes()) {
    if (n.op() != kCountedRows || n.phase() != Phase::forward) continue;
    const Value x = n.input(0);
    const auto of_it = makers_of_rows(x);
    if (!of_it) continue;
    const int64_t ignore_index = integer_of(n, "ignore_index");
    const bool even = integer_of(n, "even") != 0;
    if (const auto entry = place.find(x.id()); entry != place.end()) {
      rows_.push_back({true, entry->second, ignore_index, even});
    } else if (x.producer()) {
      rows_.push_back({false, labels.size(), ignore_index, even});
      labels.push_back(x);
      makers.insert(of_it->begin(), of_it->end());
    } else {
      continue;
    }
    split.push_back(n);
  }
  if (split.empty()) return {};
  Graph whole = graph;
  if (!labels.empty()) make_labels_program(graph, labels, makers, place, options);
  for (Node n : split) {
    indices_.push_back(graph.inputs().size());
    const Value rows =
        graph.add_input(fmt::format("steep.rows {}", indices_.size()), n.output(0).type());
    graph.replace_uses(n.output(0), rows);
  }
  graph.prune();
  return whole;
}

/// Makes a program of the nodes `makers`, which computes `labels`. `place`: index among the
/// caller's inputs, by value id.
void CountedRowsInputs::make_labels_program(Graph& graph, const std::vector<Value>& labels,
                                            const std::unordered_set<uint32_t>& makers,
                                            const std::unordered_map<uint32_t, size_t>& place,
                                            const ProgramOptions& options) {
  Part part(graph, true);
  for (Node n : graph.nodes()) {
    if (makers.count(n.id()) != 0) part.add(n, Phase::forward);
  }
  for (Value v : labels) part.graph().add_output(v.name(), part.take(v));
  for (Value v : part.sources()) labels_inputs_.push_back(place.at(v.id()));
  ProgramOptions settings = options;
  settings.memory_limit = {};  // the limit is for the step, which runs after this program
  labels_ = std::make_unique<Program>(std::move(part.graph()), std::move(settings));
}

std::vector<Tensor> CountedRowsInputs::compute(std::span<const Tensor> arrays) {
  std::vector<Tensor> outputs;
  if (labels_) {
    std::vector<Tensor> inputs;
    for (const size_t i : labels_inputs_) inputs.push_back(arrays[i]);
    outputs = labels_->forward(inputs).outputs;
  }
  std::vector<Tensor> results;
  for (Rows& r : rows_) {
    const Tensor& labels = r.fed ? arrays[r.place] : outputs[r.place];
    // Labels of another dtype are refused later, with the other inputs.
    const bool fit = labels.dtype() == DType::i32 || labels.dtype() == DType::i64;
    results.push_back(fit ? counted_rows(labels, r.ignore_index, r.even)
                          : Tensor::empty(DType::i64, {0}));
    r.labels = labels.size();
    r.computed = results.back().size();
  }
  return results;
}

std::vector<Tensor> CountedRowsInputs::expect(std::span<const Type> types) {
  std::vector<Type> outputs;
  if (labels_) {
    std::vector<Type> inputs;
    for (const size_t i : labels_inputs_) inputs.push_back(types[i]);
    outputs = labels_->output_types(inputs);
  }
  std::vector<Tensor> shells;
  for (const Rows& r : rows_) {
    int64_t labels = 1;
    for (const int64_t extent : (r.fed ? types : outputs)[r.place].dims()) labels *= extent;
    const bool as_before = labels == r.labels || labels < 0;  // < 0: not known yet
    const int64_t rows = as_before ? r.computed : labels;
    shells.push_back(Tensor::wrap(DType::i64, {rows}, nullptr, nullptr));
  }
  return shells;
}

}  // namespace steep
