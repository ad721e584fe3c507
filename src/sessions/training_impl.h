// What a TrainingSession consists of. Private: users see steep/steep.h.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "artifact/artifact.h"
#include "model/export/detached.h"
#include "program/program_set.h"
#include "steep/steep.h"
#include "train/labels.h"
#include "train/step.h"

namespace steep {

struct TrainingSession::Impl {
  Impl(std::string bytes, std::filesystem::path folder, TrainingOptions options,
       std::map<std::string, Tensor> given = {});

  StepResult step(std::span<const Tensor> inputs);
  StepResult accumulate(std::span<const Tensor> inputs);
  StepResult apply_gradients();
  AccumulatedGradients accumulated_gradients();
  void set_accumulated(double weight, double loss);
  EvalResult eval(std::span<const Tensor> inputs);
  std::map<std::string, Tensor> gradients(std::span<const Tensor> inputs, double* loss);

  /// Arrays in order → as the model's inputs have them: themselves, or in *made (data/convert.h,
  /// train/labels.h). Arrays that cannot be converted are passed on unchanged; the program then
  /// raises the error. Throws DataError.
  std::span<const Tensor> adopt(std::span<const Tensor> fed, std::vector<Tensor>* made) const;
  /// Inputs by name → in order. Throws DataError naming what is missing or unknown.
  std::vector<Tensor> in_order(const Inputs& inputs, bool label_optional) const;
  /// Copies values into states of which `names` are allowed; checks all first.
  void assign(const std::map<std::string, Tensor>& values, const std::vector<std::string>& names,
              const char* kind);
  /// The moving averages, if there are any, begin anew at these weights.
  void set_averages(const std::map<std::string, Tensor>& weights);
  std::map<std::string, Tensor> shared(const std::vector<std::string>& names) const;
  /// What a checkpoint and an exported model hold: parameters and running statistics.
  std::vector<std::string> stored() const;
  /// What it holds beside these: moments, and counts of steps.
  std::vector<std::string> optimizer_states() const;
  /// Of values for states, the first count of steps that is no whole number of at least 0; "" for
  /// none.
  std::string no_count(const std::map<std::string, Tensor>& values) const;
  /// Throws DataError, for `call`, while gradients wait.
  void require_applied(const char* call) const;
  /// Throws DataError when an update was cut off and not every state has been replaced since.
  void require_whole() const;
  double rate() const;
  /// As it is now, with a step and a prediction for each batch.
  Artifact artifact(std::span<const std::vector<Tensor>> batches) const;
  /// The model with the weights of now.
  std::unique_ptr<DetachedModel> detached(bool for_inference) const;

  std::string bytes;                    ///< the serialised model, for export
  std::filesystem::path folder;         ///< of its external data; empty: refused
  std::map<std::string, Tensor> given;  ///< initializers whose data `bytes` need not have
  TrainingOptions options;
  TrainingModel model;
  std::string fingerprint;
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
  std::string batch_note;
  std::optional<LabelForm> labels;  ///< of the loss that was attached
  size_t label_at = 0;              ///< its place among the inputs
  double base_lr = 0;
  int64_t steps = 0;
  int saved_threads = 0;  ///< of the checkpoint that was loaded; 0: none, or it does not say
  double loss_scale = 1;
  int64_t clean_steps = 0;         ///< since the loss scale last changed
  bool torn = false;               ///< an update was cut off: the states may be of two steps
  std::string torn_by;             ///< by what
  std::set<std::string> replaced;  ///< states that were assigned since
  struct Accumulated {
    int64_t parts = 0;
    double weight = 0;  ///< of all parts
    double loss = 0;    ///< their losses, each times its weight
  };
  Accumulated accumulated{};  ///< what the states accumulator_name() hold, if there are parts

 private:
  /// The backward phase. Notes which states are torn when it fails after the first update.
  std::vector<Tensor> update(Program& updating, std::unique_ptr<PendingRun> pending,
                             std::span<const Tensor> fed);
  void tear(const std::string& cause);
  /// Looks at the loss, and at the norm where forward has it: the last output, which goes. False
  /// when the gradients overflowed; the loss scale is then smaller. Throws DataError when they are
  /// not finite otherwise. `run` was the number of the run.
  bool inspect(ForwardResult& forward, std::span<const Tensor> fed, uint64_t run,
               StepResult* result);
  Program& accumulation();
  /// The program, and zeros in the states accumulator_name() unless there are parts.
  Program& begin_accumulation();
  /// States as prepare_model() has them, else zeros.
  void take_states(const Graph& graph, std::map<std::string, Tensor> initial);
  /// What the session tells of its inputs, outputs and labels.
  void describe_ends(const Graph& graph);
  /// Throws DataError when there can be no further step.
  void require_step() const;
  /// States that assign() can write.
  size_t assignable() const { return stored().size() + optimizer_states().size(); }
  /// Where the programs read it.
  void write_loss_scale();
  /// What the backward phase is fed, as step_graph() has it.
  std::vector<Tensor> backward_inputs();
  void count_steps(float more);
  /// The name of a weight with an element that is not finite, but for those that the model has so
  /// (a mask); "" when there is none.
  std::string not_finite() const;
  /// After an update: throws DataError, and counts the weights as torn, unless all are finite.
  void require_finite();
  /// After a step: smaller when it overflowed, greater after long enough without.
  void adapt_loss_scale(bool overflow);
  /// Throws DataError: the loss or the gradients of this step are not finite; names the node that
  /// began it.
  [[noreturn]] void explain(const StepResult& result, std::span<const Tensor> fed) const;

  Tensor lr_input_ = Tensor::scalar(0.0f);
  std::map<size_t, Tensor> groups_;  // settings, by the number of the group
  std::vector<Tensor> counts_;       // states: the steps of parameters that count for themselves
  std::set<std::string> infinite_;   // weights that were not finite before the first step
  Tensor step_input_ = Tensor::scalar(int64_t{0});
  bool weighs_ = false;  // has accumulation() an output loss_weight?

 public:
  enum class Kind { step, accumulation, application, evaluation, evaluation_with_loss, gradients };
  /// On parameters and moments; its turn is of all that reads or writes what a step changes.
  ProgramSet<Kind> programs;
  Program* program = nullptr;  ///< the step
};

}  // namespace steep
