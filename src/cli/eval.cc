// steep eval: the loss of a model on data, and its outputs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/data.h"
#include "cli/model_options.h"
#include "runtime/budget.h"
#include "runtime/disk.h"
#include "steep/error.h"
#include "steep/inference.h"

namespace steep::cli {
namespace {

struct EvalChoice {
  ModelChoice model;
  DataChoice data;
  bool drop_last = false;
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

/// How many rows of `scores` [.., C] have their largest entry at a label that counts.
int64_t count_right(const Tensor& scores, const Tensor& labels, const LabelForm& form) {
  const int64_t classes = scores.dims().back();
  const auto* label = labels.data<int64_t>();
  int64_t right = 0;
  auto count = [&](const auto* row) {
    for (int64_t i = 0; i < labels.size(); ++i, row += classes) {
      if (label[i] == form.ignored) continue;
      right += std::max_element(row, row + classes) - row == label[i];
    }
  };
  if (scores.dtype() == DType::f32) count(scores.data<float>());
  if (scores.dtype() == DType::f64) count(scores.data<double>());
  return right;
}

/// What the batches' outputs become: the file of --out.
class Results {
 public:
  Results(std::string path, const std::vector<TensorInfo>& outputs)
      : path_(std::move(path)), outputs_(outputs), parts_(outputs.size()) {}
  void add(const std::vector<Tensor>& outputs) {
    if (path_.empty()) return;
    for (size_t k = 0; k < parts_.size(); ++k) parts_[k].push_back(outputs[k]);
  }
  void write() const {
    if (path_.empty()) return;
    std::map<std::string, Tensor> arrays;
    for (size_t k = 0; k < parts_.size(); ++k) {
      arrays[outputs_[k].name] = join_rows(parts_[k], outputs_[k].name);
    }
    save_arrays(path_, arrays);
    fmt::print("wrote {}\n", path_);
  }

 private:
  std::string path_;
  std::vector<TensorInfo> outputs_;
  std::vector<std::vector<Tensor>> parts_;
};

Batches batches_of(const EvalChoice& choice, const Feed& feed, std::span<const TensorInfo> inputs) {
  const int64_t batch = batch_size_for(choice.data, feed, inputs, choice.drop_last);
  fmt::print("{}\n", feed.text);
  return {feed.arrays, {.batch_size = batch, .shuffle = false, .drop_last = choice.drop_last}};
}

/// Is an output of these the loss, when --loss and --output are left out?
bool has_loss(const std::vector<TensorInfo>& outputs) {
  const auto loss = outputs.size() == 1
                        ? outputs.begin()
                        : std::find_if(outputs.begin(), outputs.end(),
                                       [](const TensorInfo& o) { return o.name == "loss"; });
  return loss != outputs.end() &&
         (!loss->has_rank || std::all_of(loss->dims.begin(), loss->dims.end(),
                                         [](int64_t extent) { return extent == 1; }));
}

/// Of a model without a loss.
int write_outputs(const EvalChoice& choice, InferenceSession& session) {
  const std::vector<TensorInfo> inputs = session.input_info();
  Batches batches = batches_of(choice, feed_from(choice.data, inputs, {}, false), inputs);
  Results results(choice.out, session.output_info());
  int64_t rows = 0;
  for (int64_t i = 0; i < batches.count(); ++i) {
    const std::vector<Tensor> batch = batches.get(0, i);
    InferenceSession::Inputs named;
    for (size_t k = 0; k < inputs.size(); ++k) named[inputs[k].name] = batch[k];
    results.add(session.run(named));
    rows += batch[0].dims()[0];
  }
  fmt::print("rows {}  no loss: the model has none, and --loss is not given\n", rows);
  results.write();
  return kDone;
}

int print_loss(const EvalChoice& choice, TrainingSession& session) {
  const LossWeight weight(session);
  const std::optional<LabelForm>& labels = weight.labels();
  const Feed feed = feed_from(choice.data, session.input_info(), labels, false);
  Batches batches = batches_of(choice, feed, session.input_info());
  const std::vector<TensorInfo> info = session.output_info();
  const std::string wanted = session.options().output.empty() ? "loss" : session.options().output;
  size_t scores = info.size();
  for (size_t i = 0; i < info.size(); ++i) {
    if (info[i].name == wanted || info.size() == 1) scores = i;
  }
  const bool classify = labels && labels->classes && feed.labelled && scores < info.size() &&
                        (info[scores].dtype == DType::f32 || info[scores].dtype == DType::f64);
  LossMean mean;
  int64_t rows = 0, right = 0, counted = 0, of = 0;
  std::string not_finite;
  Results results(choice.out, info);
  for (int64_t i = 0; i < batches.count(); ++i) {
    const std::vector<Tensor> batch = batches.get(0, i);
    const EvalResult result = session.eval(batch);
    const int64_t more = batch[0].dims()[0];
    const double loss = result.loss.value_or(0), heavy = weight_of(result, batch);
    if (heavy != 0 && !std::isfinite(loss) && not_finite.empty()) {
      not_finite = fmt::format("{} in rows {} to {}", loss, rows, rows + more - 1);
    }
    mean.add(loss, heavy);
    rows += more;
    if (classify) {
      right += count_right(result.outputs[scores], batch[weight.at()], *labels);
      counted += count_labels(batch[weight.at()], *labels);
      of += batch[weight.at()].size();
    }
    results.add(result.outputs);
  }
  fmt::print("rows {}", rows);
  if (feed.labelled) fmt::print("  loss {:.8g}", mean.value());
  if (classify && counted > 0) {
    fmt::print("  accuracy {:.4f}", static_cast<double>(right) / static_cast<double>(counted));
  }
  if (counted < of) fmt::print("  labels {}, without {} ignored", counted, of - counted);
  fmt::print("\n");
  results.write();
  if (not_finite.empty()) return kDone;
  throw DataError(ErrorParts{.what = "the loss is not finite",
                             .received = not_finite,
                             .remedy = "check these rows, and the model's weights"});
}

int evaluate(const EvalChoice& choice) {
  const Budget budget(choice.model.options.limits);  // of the data, too
  if (!choice.out.empty()) check_destination(choice.out);
  const TrainingOptions options = training_options(choice.model);
  if (options.loss.empty() && options.output.empty() && choice.checkpoint.empty()) {
    InferenceSession session(std::filesystem::path(choice.model.path),
                             {.disabled_passes = options.disabled_passes,
                              .limits = options.limits,
                              .providers = options.providers});
    if (!has_loss(session.output_info())) return write_outputs(choice, session);
  }
  TrainingSession session(choice.model.path, options);
  if (!choice.checkpoint.empty()) session.load_checkpoint(choice.checkpoint);
  return print_loss(choice, session);
}

}  // namespace

Command add_eval(CLI::App& parent) {
  auto choice = std::make_shared<EvalChoice>();
  CLI::App& app = *parent.add_subcommand("eval", "Print the loss on data, write the outputs");
  add_model_options(app, choice->model);
  add_data_options(app, choice->data);
  add_provider_option(app, choice->model.providers);
  add_pass_option(app, choice->model.options);
  choice->data.limits = &choice->model.options.limits;
  app.add_flag("--drop-last", choice->drop_last, "Leave out a last batch that is not full");
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
      "The loss is the mean over rows. With --ignore-index, loss and accuracy are over the labels "
      "that\n"
      "count. Without labels, or if there is neither --loss nor a loss in the model, the command "
      "only\n"
      "writes the outputs.\n"
      "Examples:\n"
      "  steep eval trained.onnx --data test.npz --loss softmax_cross_entropy --label-array y\n"
      "  steep eval trained.onnx --data test.npz --out outputs.npz");
  return [choice, &app] {
    check_usage(app, choice->model);
    load_ops(choice->model.ops, choice->model.options.limits);
    check_optimizer_usage(app, choice->model.options.optimizer);
    return evaluate(*choice);
  };
}

}  // namespace steep::cli
