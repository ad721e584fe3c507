// steep predict: a model's outputs for data without labels.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/data.h"
#include "cli/interrupts.h"
#include "cli/model_options.h"
#include "cli/results.h"
#include "cli/trained_columns.h"
#include "runtime/budget.h"
#include "runtime/disk.h"
#include "steep/inference.h"

namespace steep::cli {
namespace {

struct PredictChoice {
  std::string model;
  std::vector<std::string> ops, providers, disabled_passes;
  DataArguments data;
  Limits limits;
  std::string out;
  int64_t threads = 0;
};

int predict(const PredictChoice& choice) {
  const Budget budget(choice.limits);  // applies to the data, too
  check_destination(choice.out);
  InferenceSession session(std::filesystem::path(choice.model),
                           {.disabled_passes = choice.disabled_passes,
                            .open_batch = true,
                            .running_statistics = true,
                            .limits = choice.limits,
                            .providers = providers_of(choice.providers)});
  const std::vector<TensorInfo> inputs = session.input_info();
  const Feed feed = feed_from(choice.data, inputs, {}, false);
  const Cut cut = cut_for(choice.data, feed, inputs, false, true);
  fmt::print("{}\n", feed.text);
  if (!feed.warning.empty()) fmt::print("warning: {}\n", feed.warning);
  FeedBatches batches(feed, {.batch_size = cut.batch, .shuffle = false});
  Results results(choice.out, session.output_info());
  fmt::print("rows {}\n", run_batches(session, batches, &results));
  results.write(true);
  return kDone;
}

}  // namespace

Command add_predict(CLI::App& parent) {
  auto choice = std::make_shared<PredictChoice>();
  CLI::App& app = *parent.add_subcommand("predict", "Write a model's outputs for data");
  app.add_option("model", choice->model, "The .onnx file")->required();
  add_ops_option(app, choice->ops);
  add_limit_options(app, choice->limits);
  add_data_options(app, choice->data, false);
  add_provider_option(app, choice->providers);
  add_pass_option(app, choice->disabled_passes);
  choice->data.limits = &choice->limits;
  add_results_option(app, choice->out)->required();
  add_threads_option(app, choice->threads);
  app.footer(
      "Needs no labels; arrays that are no inputs are left alone. The rows of outputs are those "
      "of\n"
      "the data, in their order.\n"
      "Example:\n"
      "  steep predict trained.onnx --data new.csv --out predictions.npz");
  return [choice] {
    say_when_files_shrink();
    use_threads(choice->threads);
    load_ops(choice->ops, choice->limits);
    match_trained_columns(&choice->data, choice->model, choice->limits);
    return predict(*choice);
  };
}

}  // namespace steep::cli
