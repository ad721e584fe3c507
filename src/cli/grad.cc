// steep grad: the model of a model's gradients.
#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "data/files.h"
#include "steep/gradient.h"

namespace steep::cli {
namespace {

struct GradChoice {
  std::string model;
  std::string out;
  std::vector<std::string> ops, providers;
  GradientOptions options;
};

int grad(const GradChoice& choice) {
  check_destination(choice.out);
  load_ops(choice.ops, choice.options.limits);
  providers_of(choice.providers);  // loads plug-ins, whose operators are then known
  const std::string bytes = gradient_model(std::filesystem::path(choice.model), choice.options);
  write_file(choice.out, [&](FileWriter& file) { file.write(bytes); });
  fmt::print("wrote {}\n", destination_text(choice.out));
  return kDone;
}

}  // namespace

Command add_grad(CLI::App& parent) {
  auto choice = std::make_shared<GradChoice>();
  CLI::App& app = *parent.add_subcommand("grad", "Write a model that computes a model's gradients");
  app.add_option("model", choice->model, "The ONNX file")->required();
  app.add_option("-o,--out", choice->out, "The file to write")->required();
  app.add_option("--wrt", choice->options.wrt, "Inputs and initializers: a,b,…")
      ->required()
      ->delimiter(',');
  app.add_option("--output", choice->options.outputs, "Outputs to differentiate (default: all)")
      ->delimiter(',');
  add_ops_option(app, choice->ops);
  add_provider_option(app, choice->providers);
  add_limit_options(app, choice->options.limits);
  app.footer(
      "The result has standard operators only; for custom gradients it also has functions that "
      "are\n"
      "identities for other runtimes. For each output y that is not a scalar, it has an input "
      "grad_y,\n"
      "the gradient of y. It returns grad_x for each x in --wrt.\n"
      "Example:\n"
      "  steep grad model.onnx -o gradients.onnx --wrt x,weight --output loss");
  return [choice] { return grad(*choice); };
}

}  // namespace steep::cli
