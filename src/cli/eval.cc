// steep eval: the loss of a model on data, and its outputs.
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "runtime/disk.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

struct EvalChoice {
  ModelChoice model;
  DataChoice data;
  std::string checkpoint;
  std::string out;
};

/// Rows of one output, gathered over batches.
Tensor join_rows(const std::vector<Tensor>& parts, const std::string& name) {
  Dims dims = parts[0].dims();
  int64_t rows = 0;
  for (const Tensor& part : parts) {
    if (part.dims().empty() ||
        !std::equal(part.dims().begin() + 1, part.dims().end(), dims.begin() + 1, dims.end())) {
      throw ShapeError(ErrorParts{.what = "an output has no rows to write",
                                  .node = name,
                                  .received = to_string(part.dims()),
                                  .remedy = "use a --batch that holds all rows"});
    }
    rows += part.dims()[0];
  }
  dims[0] = rows;
  Tensor joined = Tensor::empty(parts[0].dtype(), dims);
  auto* to = static_cast<char*>(joined.data());
  for (const Tensor& part : parts) {
    if (part.nbytes() > 0) std::memcpy(to, part.data(), part.nbytes());
    to += part.nbytes();
  }
  return joined;
}

/// How many rows of `scores` [.., C] have their largest entry at the label.
int64_t count_right(const Tensor& scores, const Tensor& labels) {
  const int64_t classes = scores.dims().back();
  const auto* label = labels.data<int64_t>();
  int64_t right = 0;
  auto count = [&](const auto* row) {
    for (int64_t i = 0; i < labels.size(); ++i, row += classes) {
      right += std::max_element(row, row + classes) - row == label[i];
    }
  };
  if (scores.dtype() == DType::f32) count(scores.data<float>());
  if (scores.dtype() == DType::f64) count(scores.data<double>());
  return right;
}

int evaluate(const EvalChoice& choice) {
  if (!choice.out.empty()) check_destination(choice.out);
  const TrainingOptions options = training_options(choice.model);
  TrainingSession session(choice.model.path, options);
  if (!choice.checkpoint.empty()) session.load_checkpoint(choice.checkpoint);
  const std::string label = options.loss.empty() ? "" : options.label;
  Batches batches(arrays_for(choice.data, session.input_info(), label),
                  {.batch_size = choice.data.batch, .shuffle = false});
  const std::vector<TensorInfo> info = session.output_info();
  size_t scores = info.size();
  for (size_t i = 0; i < info.size(); ++i) {
    if (info[i].name == options.output || info.size() == 1) scores = i;
  }
  const bool classify = options.loss == "softmax_cross_entropy" && scores < info.size() &&
                        (info[scores].dtype == DType::f32 || info[scores].dtype == DType::f64);
  double loss = 0;
  int64_t rows = 0, right = 0, labels = 0;
  std::vector<std::vector<Tensor>> outputs(info.size());
  for (int64_t i = 0; i < batches.count(); ++i) {
    const std::vector<Tensor> batch = batches.get(0, i);
    EvalResult result = session.eval(batch);
    loss += result.loss.value_or(0) * static_cast<double>(batch[0].dims()[0]);
    rows += batch[0].dims()[0];
    if (classify) {
      right += count_right(result.outputs[scores], batch.back());
      labels += batch.back().size();
    }
    if (choice.out.empty()) continue;
    for (size_t k = 0; k < info.size(); ++k) outputs[k].push_back(result.outputs[k]);
  }
  fmt::print("rows {}  loss {:.8g}", rows, loss / static_cast<double>(rows));
  if (classify && labels > 0) {
    fmt::print("  accuracy {:.4f}", static_cast<double>(right) / static_cast<double>(labels));
  }
  fmt::print("\n");
  if (!choice.out.empty()) {
    std::map<std::string, Tensor> arrays;
    for (size_t k = 0; k < info.size(); ++k) {
      arrays[info[k].name] = join_rows(outputs[k], info[k].name);
    }
    save_arrays(choice.out, arrays);
    fmt::print("wrote {}\n", choice.out);
  }
  return kDone;
}

}  // namespace

Command add_eval(CLI::App& parent) {
  auto choice = std::make_shared<EvalChoice>();
  CLI::App& app = *parent.add_subcommand("eval", "Print the loss on data, write the outputs");
  add_model_options(app, choice->model);
  add_data_options(app, choice->data);
  add_provider_option(app, choice->model.providers);
  choice->data.limits = &choice->model.options.limits;
  add_optimizer_option(app, choice->model, "The optimizer of the run that wrote --checkpoint");
  OptimizerOptions& optimizer = choice->model.options.optimizer;
  app.add_option("--momentum", optimizer.momentum, "As --optimizer")->transform(real(0));
  app.add_flag("--amsgrad", optimizer.amsgrad, "As --optimizer");
  app.add_flag("--centered", optimizer.centered, "As --optimizer");
  app.add_option("--checkpoint", choice->checkpoint, "Take the weights from this checkpoint");
  app.add_option("--out", choice->out, "Write every output to this .npz or .safetensors file")
      ->check([](const std::string& name) {
        return name.ends_with(".npz") || name.ends_with(".safetensors")
                   ? std::string()
                   : "expected a name that ends in .npz or .safetensors, received '" + name + "'";
      });
  app.footer(
      "The loss is the mean over rows of each batch's loss.\n"
      "Example:\n"
      "  steep eval trained.onnx --data test.npz --loss softmax_cross_entropy --label-array y");
  return [choice, &app] {
    check_usage(app, choice->model);
    load_ops(choice->model.ops, choice->model.options.limits);
    check_optimizer_usage(app, choice->model.options.optimizer);
    return evaluate(*choice);
  };
}

}  // namespace steep::cli
