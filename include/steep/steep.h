// Steep's C++ API: train an ONNX model without PyTorch.
//
//   #include <steep/steep.h>
//
//   steep::OptimizerOptions sgd{.kind = "sgd", .lr = 0.1};
//   steep::TrainingSession session("model.onnx", {.loss = "mse", .optimizer = sgd});
//   for (int i = 0; i < 100; ++i) std::cout << session.step({x, y}).loss << "\n";
//   session.save_checkpoint("run/checkpoint");
//   session.export_onnx("trained.onnx");
//
// Everything that fails throws a steep::Error (steep/error.h) and leaves weights as they were;
// where that cannot be kept, TrainingSession::step() says what follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "steep/compile_stage.h"
#include "steep/data.h"
#include "steep/dtype.h"
#include "steep/dump.h"
#include "steep/error.h"
#include "steep/export.h"
#include "steep/limits.h"
#include "steep/providers.h"
#include "steep/tensor.h"

namespace steep {

struct CustomOptimizer;  // private

/// One optimizer for all trained parameters, with the conventions (and, but for lr and adamw's
/// weight_decay, the defaults) of torch.optim; LAMB after You et al. 2020.
struct OptimizerOptions {
  /// "sgd", "adam", "adamw", "transformers_adamw", "nadam", "radam", "adagrad", "adadelta",
  /// "rmsprop", "adamax" or "lamb"; or the name of one that is registered (steep/ops.h), which
  /// takes lr, weight_decay if it has that, maximize and `attributes` of the following.
  std::string kind = "adamw";
  double lr = 1e-3;
  double weight_decay = 0;  ///< added to the gradient; decoupled with …adamw and lamb
  bool maximize = false;    ///< go along the gradient
  // sgd, rmsprop
  double momentum = 0;
  // sgd
  double dampening = 0;
  bool nesterov = false;
  // adam, adamw, nadam, radam, adamax, lamb
  double beta1 = 0.9;
  double beta2 = 0.999;
  // all but sgd
  std::optional<double> epsilon{};      ///< by default 1e-8; 1e-10 with adagrad, 1e-6 with adadelta
  bool amsgrad = false;                 ///< adam, adamw
  bool decoupled_weight_decay = false;  ///< adam, nadam, radam
  double momentum_decay = 4e-3;         ///< nadam
  double lr_decay = 0;                  ///< adagrad
  double initial_accumulator_value = 0;  ///< adagrad
  double rho = 0.9;                      ///< adadelta
  double alpha = 0.99;                   ///< rmsprop
  bool centered = false;                 ///< rmsprop
  bool bias_correction = true;           ///< adam, adamw, lamb; others always correct
  /// Of a registered optimizer: numbers for attributes of its function, by name.
  std::map<std::string, double> attributes{};
  /// What `kind` names when it is registered, filled in when a session is made.
  std::shared_ptr<const CustomOptimizer> own{};
};

/// Parameters that differ from the rest, e.g. biases without decay; a name is in one group only.
struct ParameterGroup {
  std::vector<std::string> names{};
  double lr_multiplier = 1;
  std::optional<double> weight_decay{};
  /// Replaces TrainingOptions::optimizer, and the two above, for these. Its numbers may then change
  /// between steps (TrainingSession::set_group), and each parameter counts its own steps, in a
  /// state "step/NAME" (float32).
  std::optional<OptimizerOptions> optimizer{};
};

/// Factor on the learning rate at step t (counted from 0). With warm-up, step t < warmup_steps has
/// factor (t+1)/warmup_steps. Then, with p = (t - warmup_steps) / (total_steps - warmup_steps)
/// clamped to [0, 1]:
///   constant 1;  linear 1 - (1-min)·p;  cosine min + (1-min)·(1 + cos(pi·p))/2,  min =
///   min_lr_ratio.
struct ScheduleOptions {
  std::string kind = "constant";  ///< "constant", "linear" or "cosine"
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  ///< needed by linear and cosine
  double min_lr_ratio = 0;
};

/// With precision "fp16" the loss is multiplied by a scale before it is differentiated, so that
/// small gradients are no zeros in 16 bits, and the gradients are divided by it before they are
/// used. A step whose gradients are not finite is skipped: weights, moments and the count of steps
/// stay, and the scale is halved. At `min` it is a DataError instead, since then it is not the
/// scale's doing.
struct LossScaleOptions {
  double initial = 65536;
  int64_t growth_interval = 2000;  ///< doubled after so many steps without a skip; 0: never
  double min = 1;
  double max = 16777216;
};

struct TrainingOptions {
  /// "" (the loss is an output of the model), "mse" (mean over all elements),
  /// "softmax_cross_entropy" (classes on the last axis, integer labels, mean over labels) or
  /// "binary_cross_entropy_with_logits" (mean).
  std::string loss{};
  /// The output that is the loss, or to which it is attached. "": the only output; or the output
  /// named "loss".
  std::string output{};
  /// Name of the input that is added for the labels; the last positional input. A model's own input
  /// of this name is used instead where it exists.
  std::string label = "label";
  std::optional<int64_t> ignore_index{};  ///< label that softmax_cross_entropy skips

  /// Initializers to train, and Constant nodes by the name of their output. Empty: every float
  /// initializer on which the loss depends differentiably and which acts as a weight; see
  /// TrainingSession::left_out() for those that do not.
  std::vector<std::string> trainable{};
  std::vector<std::string> frozen{};  ///< taken away from the above
  std::vector<ParameterGroup> groups{};
  /// What else a step writes: initializers, by name, each with the output of the model that it
  /// becomes (a moving average, a counter). Not trained; in checkpoints as running statistics are.
  std::map<std::string, std::string> updates{};

  OptimizerOptions optimizer{};
  ScheduleOptions schedule{};
  double clip_norm = 0;  ///< > 0: gradients are scaled by min(1, clip_norm / (global norm + 1e-6))
  bool grad_norm = false;                   ///< report the global norm even without clipping
  std::vector<std::string> step_outputs{};  ///< outputs of the model that step() returns

  uint64_t seed = 0;  ///< of dropout
  /// Arithmetic of matrix products: "fp32", or "bf16" or "fp16", mixed precision: products read
  /// bfloat16 or float16; weights, moments, norms, softmax, losses, sums and updates stay float32.
  std::string precision = "fp32";
  LossScaleOptions loss_scale{};  ///< with "fp16"
  /// Weights of float16 or bfloat16 are trained through a float32 copy of each, a moment
  /// "master/NAME": the optimizer updates the copy, and the weight, which everything else reads, is
  /// its rounding. A weight that somebody else writes is where its copy goes on from. Without it an
  /// update of less than half a unit in the weight's last place is lost. The moments of such
  /// weights, and the arithmetic of the update, are float32 either way.
  bool master_weights = true;
  /// Without master_weights: updated weights of bfloat16 are rounded up or down at random, in
  /// proportion to how near either is, so that small updates count on average. float16 is rounded
  /// to nearest.
  bool stochastic_rounding = false;
  /// Look at the gradients too, before any weight changes, and at the weights that the update made:
  /// no step is then reported as done whose gradients or weights are not finite. Without it the
  /// loss alone is looked at: a step may leave weights that are not finite, and the next one says
  /// so. What is not finite is an error that names the first node that made NaN or infinity.
  bool check_finite = false;
  /// A checkpoint is for a model of these operators; without it, for one of these parameters, kind
  /// of loss and moments. For graphs that are captured anew, which may spell a model otherwise.
  bool bound_to_graph = true;
  /// Rewrites of the graph that are left out, by name (docs/look_inside.md has them): results then
  /// differ by rounding, if at all. A name that is no pass is a ModelError.
  std::vector<std::string> disabled_passes{};
  Limits limits{};
  /// Where steps run, in the order in which a node is offered; what none of these takes runs on the
  /// CPU. Weights, moments and all that is fed and returned stay in the host's memory. Empty: the
  /// CPU alone.
  std::vector<ProviderChoice> providers{};
};

struct StepResult {
  double loss = 0;
  double lr = 0;                  ///< the learning rate that this step used
  double grad_norm = 0;           ///< before clipping; 0 unless clip_norm > 0 or grad_norm is set
  int64_t step = 0;               ///< number of steps done, this one included
  bool skipped = false;           ///< gradients overflowed at this loss scale: nothing was updated
  double loss_scale = 1;          ///< that this step used; 1 unless the precision is "fp16"
  std::vector<Tensor> outputs{};  ///< step_outputs, in order
};

struct EvalResult {
  std::optional<double> loss{};  ///< present when the label was given, or the loss is in the model
  /// What a mean cross entropy was divided by, where labels are ignored or classes weigh: labels
  /// that count, or their weights; 0 for none, and then the loss is NaN. The mean of several
  /// batches' losses is that of loss · weight. Absent where each row counts once.
  std::optional<double> weight{};
  std::vector<Tensor> outputs{};  ///< every output of the model, in the order of output_info()
};

/// Name and type of an input or output. Extents that vary are -1; `symbols` has their names, "" for
/// the rest.
struct TensorInfo {
  std::string name;
  DType dtype = DType::undefined;
  bool has_rank = true;
  Dims dims{};
  std::vector<std::string> symbols{};
  bool sequence = false;     ///< of tensors of that type
  bool optional = false;     ///< or nothing
  std::string text() const;  ///< "float32[batch, 4]"
};

/// A float constant on which the loss depends differentiably, and why it is not trained unless
/// TrainingOptions::trainable names it.
struct LeftOut {
  std::string name;
  std::string reason;  ///< "scales or shifts an input"
};

/// What the compiled step costs at one set of input shapes.
struct StepPlan {
  size_t arena_bytes = 0;  ///< planned peak of intermediate values
  size_t parameter_bytes = 0;
  size_t optimizer_bytes = 0;
  size_t output_bytes = 0;    ///< the loss and what else is handed to the caller
  size_t constant_bytes = 0;  ///< initializers that are not trained, and tables
  size_t peak_bytes = 0;      ///< of all these together, while a step runs
  size_t kernels = 0;
  double specialise_ms = 0;
  std::vector<CompileStage> stages{};  ///< of those milliseconds, in the order in which they ran
  std::string text() const;            ///< "412 MiB (parameters 114, moments 228, arena 70)"
};

/// A model, its loss and its optimizer as one compiled step: forward, backward and update in one
/// graph, planned ahead of time for each set of input shapes. Calls from several threads take
/// turns; a call from within a call (by a signal's handler) is a ProviderError. Arrays fed, and the
/// bytes that state() shares, must not be written meanwhile.
class TrainingSession {
 public:
  using Inputs = std::map<std::string, Tensor>;

  /// Throws ModelError (unreadable; no gradient for an op, all of them listed; unknown parameter,
  /// output or loss; no trained parameter on the loss's path), ShapeError, IoError.
  explicit TrainingSession(const std::filesystem::path& model, TrainingOptions options = {});
  /// From a serialised model. External data is refused unless `folder` says where it lies.
  explicit TrainingSession(std::span<const std::byte> model, TrainingOptions options = {},
                           const std::filesystem::path& folder = {});
  /// The bytes of initializers named in `weights` are there; the model need not hold them. Trained
  /// ones, and running statistics that training updates, are written in place, so that nothing is
  /// copied: their memory must be writable. Throws ModelError for a name or type that the model
  /// does not have.
  TrainingSession(std::span<const std::byte> model, TrainingOptions options,
                  std::map<std::string, Tensor> weights);
  ~TrainingSession();
  TrainingSession(TrainingSession&&) noexcept;
  TrainingSession& operator=(TrainingSession&&) noexcept;

  // --- running ----------------------------------------------------------------------------------

  /// Forward, backward, update. Inputs in the order of input_info(). Arrays of another dtype than
  /// the input's are converted, as eval(), gradients() and plan() do it: integers to integers that
  /// hold them and to floats, floats of 16, 32 and 64 bits to each other. Labels may have a last
  /// axis of one element more or less than the loss takes; those of softmax_cross_entropy may be
  /// floats that are whole, or one-hot rows. Throws before any weight changes: ShapeError (wrong
  /// count, dtype or shape), DataError (label out of range; a number that does not fit; the loss
  /// or, with check_finite, any value is NaN or infinite). With precision "fp16" see
  /// LossScaleOptions. With check_finite, an update that leaves a weight that is not finite is a
  /// DataError, too, and weights are then as in the following.
  ///
  /// Weights are updated as soon as their gradients exist. Whatever fails after the first of these
  /// updates leaves weights of two steps mixed: from then on everything that reads them throws
  /// DataError, but state(), until load_checkpoint(), or set_weights() and set_optimizer_state(),
  /// have replaced them all.
  StepResult step(std::span<const Tensor> inputs);
  StepResult step(std::initializer_list<Tensor> inputs) {
    return step(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }
  /// By name; every input must be there and no other.
  StepResult step(const Inputs& inputs);

  /// A step in several parts, for batches that memory does not hold: forward and backward, whose
  /// gradients are added to those that wait for apply_gradients(). No weight changes; running
  /// statistics and TrainingOptions::updates do, at each part. `step` of the result is the number
  /// of steps done; `skipped`, with "fp16", says that these gradients overflowed and were left out.
  /// While gradients wait, step() and save_checkpoint() throw DataError. Throws as step().
  StepResult accumulate(std::span<const Tensor> inputs);
  StepResult accumulate(std::initializer_list<Tensor> inputs) {
    return accumulate(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }
  StepResult accumulate(const Inputs& inputs);
  /// Clips and updates by the mean of the gradients that wait: as one step() of all their inputs in
  /// one batch, where parts are of one size and the loss is a mean. Parts count the same, but those
  /// of a mean cross entropy that ignores labels or weighs classes, which count as
  /// EvalResult::weight says. `loss` of the result is the mean of the parts'. Throws DataError when
  /// none waits; otherwise as step().
  StepResult apply_gradients();
  int64_t accumulated() const;  ///< parts whose gradients wait
  void drop_gradients();        ///< forgets them

  /// Forward in inference mode: no dropout, no update. The label may be left out; then there is no
  /// loss.
  EvalResult eval(std::span<const Tensor> inputs);
  EvalResult eval(std::initializer_list<Tensor> inputs) {
    return eval(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }
  EvalResult eval(const Inputs& inputs);

  /// The loss (in *loss unless null) and the gradient of each trained parameter, without clipping
  /// and without an update; random draws are those that the next step will make.
  std::map<std::string, Tensor> gradients(std::span<const Tensor> inputs, double* loss = nullptr);
  std::map<std::string, Tensor> gradients(const Inputs& inputs, double* loss = nullptr);

  // --- state ------------------------------------------------------------------------------------

  /// Of step(): the model's inputs, then the label.
  const std::vector<TensorInfo>& input_info() const;
  std::vector<TensorInfo> output_info() const;       ///< the model's outputs
  std::vector<std::string> parameter_names() const;  ///< those trained, in the order of the file
  /// Those that are not: they scale or shift inputs, weigh the loss, are settings or scales of
  /// quantisation, single numbers that belong to no layer, sparse, or Constant nodes. Without those
  /// in TrainingOptions::frozen.
  std::vector<LeftOut> left_out() const;
  /// Running statistics that training normalisations keep up to date.
  std::vector<std::string> statistic_names() const;
  /// What can be trained but is hardly meant: a loss on scores that are normalised already. As a
  /// rule empty.
  std::vector<std::string> warnings() const;
  /// "momentum_buffer/NAME"; "exp_avg/NAME", "exp_avg_sq/NAME"; "step/NAME" in groups with an
  /// optimizer of their own; "master/NAME" with TrainingOptions::master_weights.
  std::vector<std::string> optimizer_state_names() const;

  /// Copies of the trained parameters / of the optimizer's moments, by name.
  std::map<std::string, Tensor> weights() const;
  std::map<std::string, Tensor> optimizer_state() const;
  /// The present bytes, shared: they change with each step. Either kind of name.
  Tensor state(const std::string& name) const;
  /// Copies values in, of trained parameters and running statistics / of moments. Every tensor is
  /// checked (ModelError for an unknown name, ShapeError for another shape or dtype) before the
  /// first is written. Names left out keep their values.
  void set_weights(const std::map<std::string, Tensor>& weights);
  void set_optimizer_state(const std::map<std::string, Tensor>& moments);

  int64_t step_count() const;
  /// As bias correction and the schedule count; parameters that count for themselves keep theirs,
  /// which set_optimizer_state() sets.
  void set_step_count(int64_t count);
  double lr() const;       ///< of the next step
  void set_lr(double lr);  ///< base rate, before the schedule's factor
  /// From the next step on; step_count() steps of it are done. Throws ModelError as a session does.
  void set_schedule(const ScheduleOptions& schedule);
  /// From the next step on, of options().groups[i], which has an optimizer of its own: other rates,
  /// betas, momentum, dampening, epsilon, weight decay. Costs no compilation. Throws ModelError for
  /// values out of range and for what is compiled in: the kind, nesterov, momentum from or to 0.
  void set_group(size_t i, const OptimizerOptions& optimizer);
  double loss_scale() const;  ///< of the next step; 1 unless the precision is "fp16"
  /// Throws DataError unless the precision is "fp16" and the scale within the options' bounds.
  void set_loss_scale(double scale);
  void set_seed(uint64_t seed);
  /// Number of runs so far: the counter that, with the seed, keys every random draw.
  uint64_t run_count() const;
  void set_run_count(uint64_t count);
  const TrainingOptions& options() const;

  // --- files ------------------------------------------------------------------------------------

  /// Writes parameters, moments, counters and `user` (JSON text, anything the caller wants back) to
  /// the folder `path`, replacing a checkpoint there only once the new one is whole and on disk.
  /// Savers of one folder queue, in other processes too. Throws IoError, and DataError when a count
  /// or `user` could not be loaded again; the old checkpoint then stays, unless the error says that
  /// the new one is in place.
  void save_checkpoint(const std::filesystem::path& path, const std::string& user = "{}") const;
  /// Verifies everything, then loads; returns `user`. Throws CheckpointError naming file and reason
  /// (damaged, of another model or optimizer); then nothing has changed. The base learning rate and
  /// the seed become those of the checkpoint; the schedule stays as in options.
  std::string load_checkpoint(const std::filesystem::path& path);
  /// What to know of the checkpoint that was loaded last: that it was saved with another number of
  /// threads, so that results may differ in bits from those of a run that went on. Else "".
  std::string checkpoint_note() const;

  /// A copy of the model with the trained weights; everything else in the file is kept. For
  /// inference it is rewritten as model_for_inference() does it (steep/export.h), and a loss that
  /// is an output of the model goes, with the outputs that read the input TrainingOptions::label,
  /// and with the inputs that nothing else reads. Throws ModelError when no output is left.
  /// A model of more than 2 GiB has its data beside the file: ExportOptions. External data of the
  /// model that is not trained stays where it is when `path` is in its folder; else it is copied.
  /// Throws IoError; then what was at `path` is as it was.
  void export_onnx(const std::filesystem::path& path, bool for_inference = false) const;
  void export_onnx(const std::filesystem::path& path, const ExportOptions& options) const;
  /// In one message, external data brought in. Throws ModelError for more than 2 GiB.
  std::string export_onnx_bytes(bool for_inference = false) const;

  // --- looking inside ---------------------------------------------------------------------------

  /// Compiles for inputs of these types and shapes, without running.
  StepPlan plan(std::span<const Tensor> inputs);
  /// The most memory that parameters, moments and steps took at one time so far. Evaluation has
  /// memory of its own.
  size_t peak_bytes() const;
  /// The compiled step: graph, kernels, memory plan.
  std::string dump(std::span<const Tensor> inputs, DumpFormat format = DumpFormat::text);
  /// Text of the step's graph before shapes are bound.
  std::string dump() const;
  /// Records one event per kernel from now on, until write_profile().
  void start_profile();
  /// Writes a Chrome/Perfetto trace (ui.perfetto.dev) and stops recording. Throws IoError.
  void write_profile(const std::filesystem::path& path);

  struct Impl;  ///< sessions/training_impl.h

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace steep
