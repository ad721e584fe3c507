// Collects the outputs of a model over batches, and writes them to a file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/data.h"
#include "steep/inference.h"
#include "steep/steep.h"

namespace steep::cli {

/// --out: a path that ends in .npz or .safetensors.
CLI::Option* add_results_option(CLI::App& app, std::string& out);

class Results {
 public:
  /// Does nothing if `path` is empty.
  Results(std::string path, const std::vector<TensorInfo>& outputs)
      : path_(std::move(path)), outputs_(outputs), parts_(outputs.size()) {}
  void add(const std::vector<Tensor>& outputs);
  /// `say`: print the path. Throws ShapeError, which names an output, if it has no rows; IoError.
  void write(bool say) const;

 private:
  std::string path_;
  std::vector<TensorInfo> outputs_;
  std::vector<std::vector<Tensor>> parts_;
};

/// Runs each batch, whose arrays are in the order of the inputs. Returns the number of rows.
int64_t run_batches(InferenceSession& session, FeedBatches& batches, Results* results);

}  // namespace steep::cli
