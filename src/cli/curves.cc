#include "cli/curves.h"

#include <fmt/format.h>

#include "steep/error.h"

namespace steep::cli {

Curves::Curves(const std::string& metrics, const std::string& tensorboard, int64_t step,
               Keeper& keeper)
    : keeper_(keeper),
      metrics_(std::make_unique<StepTable>(metrics, step)),
      events_(std::make_unique<EventFile>(tensorboard, step)) {}

void Curves::add_row(const StepResult& result, int64_t epoch, Progress& progress) {
  if (metrics_ == nullptr) return;
  try {
    metrics_->add(result.step, epoch, result.loss, result.lr, result.grad_norm);
  } catch (const IoError& error) {
    metrics_ = nullptr;
    keeper_.note(fmt::format("{}; --metrics ends before step {}", error.parts().what, result.step),
                 progress);
  }
}

void Curves::add_values(int64_t step, const Fields& values, Progress& progress) {
  if (events_ == nullptr) return;
  try {
    for (const auto& [tag, value] : values.items()) events_->add(tag, step, value.get<double>());
  } catch (const IoError& error) {
    events_ = nullptr;
    keeper_.note(fmt::format("{}; --tensorboard ends before step {}", error.parts().what, step),
                 progress);
  }
}

}  // namespace steep::cli
