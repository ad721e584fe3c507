#include <fmt/format.h>

#include <string>
#include <string_view>

#include "runtime/digest.h"
#include "train/custom_optimizer.h"
#include "train/step.h"

namespace steep {

std::string model_fingerprint(const TrainingModel& model, const TrainingOptions& options) {
  Digest digest;
  auto mix = [&digest](std::string_view text) {
    digest.add(text);
    digest.add("\xff");  // a byte that no text contains: it ends the item
  };
  if (options.bound_to_graph) {
    for (Node n : model.graph.nodes()) {
      // How a weight is kept is no part of the model.
      if (n.op() != "steep.Unpack" && n.op() != "steep.ReadFile") mix(n.op());
    }
  }
  for (const std::string& name : model.parameters) {
    mix(name);
    mix(to_string(model.graph.find(name).type()));
  }
  mix(options.loss_model.empty() ? options.loss : options.loss_model);
  mix(options.optimizer.kind);
  if (const auto own = custom_optimizer(options.optimizer)) mix(identity_of(own->body));
  for (const ParameterGroup& group : options.groups) {
    const auto own = group.optimizer ? custom_optimizer(*group.optimizer) : nullptr;
    if (own) mix(group.optimizer->kind), mix(identity_of(own->body));
  }
  for (const std::string& name : model.moments) mix(name);
  return fmt::format("{:016x}", digest.value());
}

}  // namespace steep
