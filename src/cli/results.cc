#include "cli/results.h"

#include <fmt/format.h>

#include <map>

#include "data/convert.h"
#include "steep/error.h"

namespace steep::cli {

CLI::Option* add_results_option(CLI::App& app, std::string& out) {
  return app.add_option("--out", out, "Write every output to this .npz or .safetensors file")
      ->check([](const std::string& name) {
        return name.ends_with(".npz") || name.ends_with(".safetensors")
                   ? std::string()
                   : "expected a name that ends in .npz or .safetensors, received '" + name + "'";
      });
}

void Results::add(const std::vector<Tensor>& outputs) {
  if (path_.empty()) return;
  for (size_t k = 0; k < parts_.size(); ++k) parts_[k].push_back(outputs[k]);
}

void Results::write(bool say) const {
  if (path_.empty()) return;
  std::map<std::string, Tensor> arrays;
  for (size_t k = 0; k < parts_.size(); ++k) {
    for (const Tensor& part : parts_[k]) {
      if (!part.dims().empty()) continue;
      throw ShapeError(ErrorParts{.what = "An output has no rows to write.",
                                  .node = outputs_[k].name,
                                  .received = to_string(part.dims()),
                                  .remedy = "Use a --batch that holds all rows."});
    }
    arrays[outputs_[k].name] = join_rows(parts_[k], outputs_[k].name);
  }
  save_arrays(path_, arrays);
  if (say) fmt::print("wrote {}\n", path_);
}

int64_t run_batches(InferenceSession& session, FeedBatches& batches, Results* results) {
  const std::vector<TensorInfo> inputs = session.input_info();
  int64_t rows = 0;
  for (int64_t i = 0; i < batches.count(); ++i) {
    const std::vector<Tensor> batch = batches.get(0, i);
    InferenceSession::Inputs feed;
    for (size_t k = 0; k < inputs.size(); ++k)
      feed[inputs[k].name] = convert(batch[k], inputs[k].dtype, inputs[k].name);
    results->add(session.run(feed));
    rows += batch[0].dims()[0];
  }
  return rows;
}

}  // namespace steep::cli
