// Rows that count (steep.CountedRows) as inputs that the engine feeds: their number is known before
// anything else runs, so that a plan covers the whole graph.
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

  /// Puts an input in the place of each steep.CountedRows of the forward part whose labels depend
  /// on forward inputs and constants alone. Another graph is made of what makes these labels.
  /// Returns the graph as it was; nothing where it stays so.
  std::optional<Graph> split_off(Graph& graph, const ProgramOptions& options);

  bool empty() const { return rows_.empty(); }
  /// Indices into the inputs of the graph.
  const std::vector<size_t>& indices() const { return indices_; }

  /// One tensor for each of indices(). `fed`: the caller's forward inputs, in order. Throws as
  /// Program::forward().
  std::vector<Tensor> compute(std::span<const Tensor> fed);
  /// int64 shells of as many rows as the last run had, where its labels were as many; else of all.
  std::vector<Tensor> expect(std::span<const Type> fed);

 private:
  struct Rows {
    bool fed;      ///< labels are the caller's; else the labels program's
    size_t place;  ///< among its inputs, or the program's results
    int64_t ignore_index;
    bool even;
    int64_t labels = -1;  ///< their number in the last run
    int64_t computed = 0;
  };
  void make_labels_program(Graph& graph, const std::vector<Value>& labels,
                           const std::unordered_set<uint32_t>& makers,
                           const std::unordered_map<uint32_t, size_t>& place,
                           const ProgramOptions& options);

  std::vector<Rows> rows_;
  std::vector<size_t> indices_;
  std::unique_ptr<Program> labels_;    ///< null where all labels are the caller's
  std::vector<size_t> labels_inputs_;  ///< by its input: which of the caller's
};

}  // namespace steep
