// The members of a TrainingSession. Private: users see steep/steep.h.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "artifact/artifact.h"
#include "model/export/detached.h"
#include "model/import/import.h"
#include "program/program_set.h"
#include "runtime/receiver.h"
#include "steep/steep.h"
#include "train/adapters.h"
#include "train/labels.h"
#include "train/settings.h"
#include "train/step.h"

namespace steep {

struct TrainingSession::Impl {
  Impl(std::string bytes, std::filesystem::path folder, TrainingOptions options,
       std::map<std::string, Tensor> weight_data = {});

  StepResult step(std::span<const Tensor> inputs);
  StepResult accumulate(std::span<const Tensor> inputs);
  StepResult apply_gradients();
  void hold_states_of(const std::vector<std::string>& parameters, Receive receive);
  void on_sum(Ready ready);
  std::vector<TensorInfo> states_of(const std::string& parameter) const;
  StepResult apply_held_gradients(double norm);
  void complete_update();
  AccumulatedGradients accumulated_gradients();
  void set_accumulated(double weight, double loss);
  EvalResult eval(std::span<const Tensor> inputs);
  std::map<std::string, Tensor> gradients(std::span<const Tensor> inputs, double* loss);

  /// Converts arrays, in order, to the dtypes and forms of the model's inputs (data/convert.h,
  /// train/labels.h). Returns `arrays` if nothing has to be converted, else *storage. Arrays that
  /// cannot be converted stay as they are; the program then throws the error. Throws DataError.
  std::span<const Tensor> adopt(std::span<const Tensor> arrays, std::vector<Tensor>* storage) const;
  /// Inputs by name → in order. Throws DataError that names the missing or unknown input.
  std::vector<Tensor> in_order(const Inputs& inputs, bool label_optional) const;
  /// Copies values into states. Throws, before the first copy, for a name that is not in `names`.
  void assign(const std::map<std::string, Tensor>& values, const std::vector<std::string>& names,
              const char* kind);
  /// Sets the moving averages, if there are any, to these weights.
  void set_averages(const std::map<std::string, Tensor>& weights);
  std::map<std::string, Tensor> shared(const std::vector<std::string>& names) const;
  /// The states in a checkpoint and in an exported model: parameters and running statistics.
  std::vector<std::string> stored() const;
  /// The states in a checkpoint only: moments, and counts of steps; without `elsewhere`.
  std::vector<std::string> optimizer_states() const;
  /// The same as they are kept: also the scales of moments that have some.
  std::vector<std::string> kept_states() const;
  /// A state, or one of `elsewhere`, which has a type only.
  const Tensor& state_type(const std::string& name) const;
  /// The states that a checkpoint contains beside the weights. Throws DataError unless `others` are
  /// `elsewhere`.
  std::map<std::string, Tensor> with_others(std::map<std::string, Tensor> others) const;
  /// A copy of a state of optimizer_states(); of moments in fewer bits, in float32.
  Tensor wide_state(const std::string& name) const;
  /// Values of optimizer_states() as they are kept. Throws ModelError for a name of kept_states()
  /// only, and ShapeError for a moment in fewer bits that is not given in float32.
  std::map<std::string, Tensor> kept(std::map<std::string, Tensor> values) const;
  /// Converts moments that a checkpoint holds in another precision than this session, or
  /// their types, where they have no data. Returns a note on it, or "". Throws CheckpointError for
  /// scales that cannot be.
  std::string convert_states(std::map<std::string, Tensor>& values,
                             const std::filesystem::path& file) const;
  /// The name of the first value that should be a count of steps but is not a whole number of at
  /// least 0; "" if there is none.
  std::string no_count(const std::map<std::string, Tensor>& values) const;
  /// A number that a moment of an update cannot be: `received`, of the state `name`.
  struct WrongNumber {
    std::string name;
    float received;
  };
  /// The first number among `values` that no moment of it can be: NaN, an infinity, and a negative
  /// one in a sum of squares. Values that are types only pass. `may_overflow`: such a sum may be
  /// infinite, which a step may leave.
  std::optional<WrongNumber> no_moment(const std::map<std::string, Tensor>& values,
                                       bool may_overflow) const;
  /// What errors say of the numbers of a moment.
  const char* moment_range(const std::string& name) const;
  /// Throws DataError, which names `call`, if there are accumulated gradients.
  void require_applied(const char* call) const;
  /// Throws DataError, which names `call`, after hold_states_of().
  void require_undivided(const char* call) const;
  /// The parameters whose gradients are added up here.
  std::vector<std::string> summed() const;
  /// Throws DataError for a state of `elsewhere`.
  void require_here(const std::string& name) const;
  /// Throws DataError if an update was incomplete and some state has not been replaced since.
  void require_whole() const;
  double rate() const;
  /// changed_settings() since a checkpoint with these settings.
  std::string changes_since(const Settings& before) const;
  /// The current session as an artifact, with a step and a prediction for each batch.
  Artifact artifact(std::span<const std::vector<Tensor>> batches) const;
  /// The model with the current weights. Adapters are merged into theirs, or stay beside them.
  std::unique_ptr<DetachedModel> detached(bool for_inference, bool merge_adapters) const;

  std::string bytes;                          ///< the serialised model, for export
  std::filesystem::path folder;               ///< of its external data; empty: refused
  std::map<std::string, Tensor> weight_data;  ///< initializers whose data need not be in `bytes`
  TrainingOptions options;
  std::vector<Adapter> adapters;  ///< of the trained model; `bytes` is without them
  std::set<std::string> packed;   ///< quantised weights, which are states if there are adapters
  std::map<std::string, Tensor> places;  ///< frozen weights that stay in their file, and where
  FileMarks data_files;                  ///< the model's external data, which exports read again
  TrainingModel model;
  std::string fingerprint;
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
  std::string batch_note;
  std::optional<LabelForm> labels;  ///< of the loss that TrainingOptions::loss added
  size_t label_at = 0;              ///< index of the label among the inputs
  double base_lr = 0;
  int64_t steps = 0;
  int saved_threads = 0;       ///< of the loaded checkpoint; 0: no checkpoint, or unknown
  std::string loaded_hash;     ///< of the checkpoint loaded since hold_states_of()
  Settings loaded_settings;    ///< of the loaded checkpoint
  double loaded_lr = 0;        ///< its base rate
  std::string converted_note;  ///< on moments of the loaded checkpoint that were converted
  double loss_scale = 1;
  int64_t clean_steps = 0;         ///< steps since the loss scale last changed
  bool torn = false;               ///< an update was incomplete: the states may belong to two steps
  std::string torn_by;             ///< the error that caused it
  std::set<std::string> replaced;  ///< states that were assigned since then
  struct Accumulated {
    int64_t parts = 0;
    double weight = 0;       ///< of all parts
    double loss = 0;         ///< sum of loss · weight over the parts
    int64_t overflowed = 0;  ///< parts left out, with the sum of their losses
    double overflowed_loss = 0;
    int64_t unlabelled = 0;  ///< parts left out since no label counts
    int64_t lost = 0;        ///< parts whose sums an error in a later part has spoilt
  };
  /// After hold_states_of(): the parameters whose states are kept, and types of the states, without
  /// data, that other processes keep.
  std::optional<std::set<std::string>> held{};
  std::map<std::string, Tensor> elsewhere{};
  std::unique_ptr<Receiver> receiver{};   ///< of gradients that are not added to sums here
  std::exception_ptr receiver_error{};    ///< what it threw in the run
  std::unique_ptr<Receiver> announcer{};  ///< of sums that are there; calls `sum_ready`
  Ready sum_ready{};
  bool incomplete = false;    ///< torn until complete_update()
  Accumulated accumulated{};  ///< describes the sums in the states accumulator_name(), if parts > 0

 private:
  /// Adds the adapters, with these values, to a copy of the file.
  void write_adapters(DetachedModel& file, const std::map<std::string, Tensor>& values,
                      bool merge) const;
  /// Runs the backward phase. If it fails after the first update, marks the states as torn.
  std::vector<Tensor> update(Program& updating, std::unique_ptr<PendingRun> pending,
                             std::span<const Tensor> arrays);
  void tear(const std::string& cause);
  /// Runs a program of application_graph(), whose inputs after kShareInput are `more`.
  StepResult apply(Program& updating, std::span<const Tensor> more);
  StepResult apply_nothing();
  void hand_over(const std::set<std::string>& keeps, Receive receive);
  /// Checks the loss and, if forward computes it, the norm (the last output, which is removed).
  /// Returns false if the gradients overflowed; the loss scale is then reduced. Throws DataError if
  /// a value is not finite for another reason. `run` is the number of the run.
  bool inspect(ForwardResult& forward, std::span<const Tensor> arrays, uint64_t run,
               StepResult* result);
  Program& accumulation();
  Delivery delivery() const;
  void run_parts(uint64_t runs);
  /// Returns the program. If there are no parts, it zeroes the states accumulator_name().
  Program& begin_accumulation();
  /// Imports the model, with adapters if the options ask for them.
  ImportedModel import_adapted();
  /// Fills `places`, and gives *values the types of these weights. Throws ModelError if there are
  /// none.
  void leave_on_disk(const AdaptedModel& adapted, std::map<std::string, Tensor>* values);
  /// Removes adapters that are not trained, with a note in model.left_out. Throws ModelError if one
  /// half of an adapter is frozen.
  void leave_out_unused_adapters();
  /// Takes the initial states of prepare_model(); other states of `graph` get zeros.
  void take_states(const Graph& graph, std::map<std::string, Tensor> initial);
  /// Moves the states that `offload` names to a file in `offload_folder`, if there is one.
  void offload_states();
  /// Sets the descriptions of inputs, outputs and labels.
  void describe_ends(const Graph& graph);
  /// Throws DataError if there are no accumulated gradients.
  void require_gradients() const;
  /// Throws DataError if the number of steps is at its limit.
  void require_step() const;
  /// The number of states that assign() can write.
  size_t assignable() const { return stored().size() + kept_states().size(); }
  /// Writes the loss scale to the state that the programs read.
  void write_loss_scale();
  /// The backward inputs, as step_graph() defines them.
  std::vector<Tensor> backward_inputs();
  void count_steps(float more);
  /// The name of a weight with an element that is not finite, except weights that had one before
  /// the first step (a mask); "" if there is none.
  std::string not_finite() const;
  /// After an update: if a weight is not finite, marks the states as torn and throws DataError.
  void require_finite();
  /// After a step: reduces the loss scale after an overflow, and raises it after enough steps
  /// without.
  void adapt_loss_scale(bool overflow);
  /// Throws DataError: the loss or the gradients of this step are not finite. Names the first node
  /// that produced such a value.
  [[noreturn]] void explain(const StepResult& result, std::span<const Tensor> arrays) const;

  Tensor lr_input_ = Tensor::scalar(0.0f);
  std::map<size_t, Tensor> groups_;  // settings_of() optimizers, by number of the group
  std::vector<Tensor> counts_;       // states: steps of parameters with a count of their own
  std::set<std::string> infinite_;   // weights that were not finite before the first step
  Tensor step_input_ = Tensor::scalar(int64_t{0});
  bool weighs_ = false;  // whether accumulation() has an output loss_weight

 public:
  enum class Kind { step, accumulation, application, evaluation, evaluation_with_loss, gradients };
  /// The programs share parameters and moments. Its lock, `call_lock`, guards everything that a
  /// step changes.
  ProgramSet<Kind> programs;
  Program* program = nullptr;  ///< the program of the step
};

/// Returns the element of a scalar of float32 or float64. Throws ShapeError if there are several.
double read_scalar(const Tensor& tensor);
/// Moves the outputs after the loss to *result.
void take_step_outputs(ForwardResult& forward, StepResult* result);

}  // namespace steep
