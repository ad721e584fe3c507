// The indices of rows that count (steep.CountedRows) as graph inputs that the engine computes.
// Their number is known before the rest runs, so that one plan covers the whole graph.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "steep/tensor.h"

namespace steep {

class Program;
struct ProgramOptions;

class CountedRowsInputs {
 public:
  CountedRowsInputs();
  ~CountedRowsInputs();
  CountedRowsInputs(const CountedRowsInputs&) = delete;
  CountedRowsInputs& operator=(const CountedRowsInputs&) = delete;

  /// Replaces each steep.CountedRows of the forward part by an input, if its labels depend on
  /// forward inputs and constants only. The nodes that compute these labels become another program.
  /// Returns the original graph; nothing if the graph does not change.
  std::optional<Graph> split_off(Graph& graph, const ProgramOptions& options);

  bool empty() const { return rows_.empty(); }
  /// Indices into the inputs of the graph.
  const std::vector<size_t>& indices() const { return indices_; }

  /// Computes one tensor for each of indices(). `arrays`: the caller's forward inputs, in order.
  /// Throws as Program::forward().
  std::vector<Tensor> compute(std::span<const Tensor> arrays);
  /// int64 tensors without bytes, with the number of rows of the last run if it had the same number
  /// of labels; otherwise with all rows.
  std::vector<Tensor> expect(std::span<const Type> types);

 private:
  struct Rows {
    bool fed;      ///< the caller gives the labels; otherwise labels_ computes them
    size_t place;  ///< index among the caller's inputs, or among the results of labels_
    int64_t ignore_index;
    bool even;
    int64_t labels = -1;  ///< number of labels in the last run
    int64_t computed = 0;
  };
  void make_labels_program(Graph& graph, const std::vector<Value>& labels,
                           const std::unordered_set<uint32_t>& makers,
                           const std::unordered_map<uint32_t, size_t>& place,
                           const ProgramOptions& options);

  std::vector<Rows> rows_;
  std::vector<size_t> indices_;
  std::unique_ptr<Program> labels_;    ///< null if the caller gives all labels
  std::vector<size_t> labels_inputs_;  ///< by input of labels_: index among the caller's inputs
};

}  // namespace steep
