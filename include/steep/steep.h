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
// A call that fails throws a steep::Error (steep/error.h), and the weights do not change. See
// TrainingSession::step() for the one exception.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
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
#include "steep/exchange.h"
#include "steep/export.h"
#include "steep/limits.h"
#include "steep/memory_report.h"
#include "steep/providers.h"
#include "steep/tensor.h"

namespace steep {

struct CustomOptimizer;  // private

/// One optimizer for all trained parameters, with the conventions of torch.optim, and its defaults
/// except for lr and the weight_decay of adamw and muon; LAMB after You et al. 2020.
struct OptimizerOptions {
  /// "sgd", "adam", "adamw", "transformers_adamw", "nadam", "radam", "adagrad", "adadelta",
  /// "rmsprop", "adamax", "lamb", "adafactor" or "muon" (only for parameters of two axes); or the
  /// name of a registered optimizer (steep/ops.h). That one uses only lr, weight_decay (if it has
  /// that attribute), maximize and `attributes`.
  std::string kind = "adamw";
  double lr = 1e-3;
  /// Added to the gradient; decoupled with …adamw, lamb, adafactor and muon.
  double weight_decay = 0;
  bool maximize = false;             ///< step in the direction of the gradient, not against it
  std::optional<double> momentum{};  ///< sgd, rmsprop: by default 0; muon: 0.95
  double dampening = 0;              ///< sgd
  std::optional<bool> nesterov{};    ///< sgd: by default false; muon: true
  // adam, adamw, nadam, radam, adamax, lamb
  double beta1 = 0.9;
  double beta2 = 0.999;
  /// All but sgd; by default 1e-8; 1e-10 with adagrad, 1e-6 with adadelta, 1e-7 with muon. With
  /// adafactor the least root of the second moment, by default the distance from 1 to the next
  /// number of the weight's type.
  std::optional<double> epsilon{};
  bool amsgrad = false;                  ///< adam, adamw
  bool decoupled_weight_decay = false;   ///< adam, nadam, radam
  double momentum_decay = 4e-3;          ///< nadam
  double lr_decay = 0;                   ///< adagrad
  double initial_accumulator_value = 0;  ///< adagrad
  double rho = 0.9;                      ///< adadelta
  double alpha = 0.99;                   ///< rmsprop
  bool centered = false;                 ///< rmsprop
  bool bias_correction = true;           ///< adam, adamw, lamb; others always correct
  double beta2_decay = -0.8;             ///< adafactor: step^beta2_decay weighs the new squares
  double epsilon2 = 1e-3;                ///< adafactor: least root mean square of a weight
  double clip_threshold = 1;             ///< adafactor: d, the greatest root mean square of a step
  /// muon: the three coefficients of the Newton-Schulz iteration, by default 3.4445, -4.775 and
  /// 2.0315; and the number of its steps.
  std::vector<double> ns_coefficients{};
  int64_t ns_steps = 5;
  /// muon: the factor of the rate for a matrix [n, m]: "original" or "" max(1, n/m)^½,
  /// "match_rms_adamw" 0.2 · max(n, m)^½, "spectral_unclamped" (n/m)^½
  std::string adjust_lr_fn{};
  /// How the moments of weights of at least 4,096 elements are kept between steps: "float32";
  /// "bfloat16"; or "int8", floats of 8 bits with one scale for each block of 256 (docs/memory.md).
  /// Updates are computed in float32, and moments rounded at random: a run with the same seed has
  /// the same bits. Only sgd, adam, adamw, transformers_adamw (all without amsgrad) and lamb have
  /// the last two; moments of float64 weights stay as they are.
  std::string state_precision = "float32";
  /// For a registered optimizer: values of its function's attributes, by name.
  std::map<std::string, double> attributes{};
  /// The registered optimizer that `kind` names; the session fills it in.
  std::shared_ptr<const CustomOptimizer> own{};
};

/// Parameters with other settings, e.g. biases without decay. A name may be in one group only.
struct ParameterGroup {
  std::vector<std::string> names{};
  double lr_multiplier = 1;
  std::optional<double> weight_decay{};
  /// Replaces TrainingOptions::optimizer and the two fields above for these parameters. Its numbers
  /// may change between steps (TrainingSession::set_group). Each parameter has its own count of
  /// steps, in a state "step/NAME" (float32).
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
/// small gradients do not become zeros in 16 bits. The gradients are divided by the scale before
/// they are used. A step whose gradients are not finite is skipped: weights, moments and the count
/// of steps do not change, and the scale is halved. At the scale `min` it is a DataError instead,
/// since then the scale is not the cause.
struct LossScaleOptions {
  double initial = 65536;
  int64_t growth_interval = 2000;  ///< steps without a skip until it doubles; 0: never
  double min = 1;
  double max = 16777216;
};

struct TrainingOptions {
  /// "" (the loss is an output of the model); "mse", "l1" or "huber" (means over all elements);
  /// "softmax_cross_entropy", or "nll" of log-probabilities (classes on the last axis, integer
  /// labels, mean over labels); "binary_cross_entropy_with_logits", or "binary_cross_entropy" of
  /// probabilities (means). Each is PyTorch's loss of that name. Or the path of an ONNX model,
  /// NAME.onnx, with inputs for scores and labels, in this order, and one output of one element.
  std::string loss{};
  /// The bytes of such a model, instead of a file; `loss` is only a name then.
  std::string loss_model{};
  /// The output that is the loss, or that the added loss reads. "": the only output, or the output
  /// named "loss".
  std::string output{};
  /// Name of the input that is added for the labels, as the last input. An input of the model that
  /// has this name is used instead.
  std::string label = "label";
  std::optional<int64_t> ignore_index{};  ///< label that softmax_cross_entropy and nll skip
  double huber_delta = 1;                 ///< for huber: larger errors count linearly; > 0
  /// For softmax_cross_entropy: the label's class counts 1 - label_smoothing, and all classes,
  /// including that one, share the rest. 0 to 1.
  double label_smoothing = 0;
  /// For softmax_cross_entropy and nll: one weight for each class, at least 0. The weight of a row
  /// is that of its label's class, and the loss is the weighted mean. Empty: 1 for each class.
  std::vector<double> class_weights{};

  /// Initializers to train, and Constant nodes by the name of their output. Empty: every float
  /// initializer on which the loss depends differentiably and which acts as a weight; see
  /// TrainingSession::left_out() for those that do not.
  std::vector<std::string> trainable{};
  std::vector<std::string> frozen{};  ///< not trained, even if listed above
  /// > 0: train low-rank adapters instead of whole weights (LoRA). A product x · W with a matrix
  /// [k, n] becomes x · W + lora_alpha / lora_rank · (x · A) · B. A is "W.lora_A" [k, lora_rank],
  /// with random initial values, and B is "W.lora_B" [lora_rank, n], with zeros. Only these and
  /// `trainable` are trained; a weight that `trainable` or `frozen` selects has no adapter.
  int64_t lora_rank = 0;
  std::optional<double> lora_alpha{};  ///< by default lora_rank: the factor is 1
  /// Names of weights, or patterns, that get adapters. Empty: all matrices that only right operands
  /// of products read. Throws ModelError for a name that cannot have an adapter, with the reason.
  std::vector<std::string> lora_targets{};
  std::vector<ParameterGroup> groups{};
  /// Other initializers that a step writes: the name of each, and the output of the model that
  /// gives its new value (a moving average, a counter). They are not trained; checkpoints contain
  /// them, as they contain running statistics.
  std::map<std::string, std::string> updates{};

  OptimizerOptions optimizer{};
  ScheduleOptions schedule{};
  double clip_norm = 0;  ///< > 0: gradients are scaled by min(1, clip_norm / (global norm + 1e-6))
  /// > 0: each element of a gradient is bounded to [-clip_value, clip_value], and NaN stays. With
  /// clip_norm, the gradients are scaled first, as by clip_grad_norm_ before clip_grad_value_.
  double clip_value = 0;
  /// > 0 and below 1: the state "ema/NAME" is a moving average of each trained parameter. It starts
  /// at the weight; after each step it becomes decay · itself + (1 - decay) · the weight. eval()
  /// and exports use the averages instead of the weights.
  double ema_decay = 0;
  bool grad_norm = false;                   ///< report the global norm even without clipping
  std::vector<std::string> step_outputs{};  ///< outputs of the model that step() returns

  uint64_t seed = 0;  ///< seed of dropout, and of the initial values of adapters
  /// Arithmetic of matrix products: "fp32"; or "bf16" or "fp16" (mixed precision): products read
  /// bfloat16 or float16; weights, moments, norms, softmax, losses, sums and updates stay float32.
  std::string precision = "fp32";
  LossScaleOptions loss_scale{};  ///< with "fp16"
  /// Train weights of float16 or bfloat16 through a float32 copy of each, the state "master/NAME".
  /// The optimizer updates the copy; the weight, which everything else reads, is the rounded copy.
  /// If other code writes the weight, the copy continues from the new value. Without this option,
  /// an update of less than half a unit in the weight's last place is lost. The moments of such
  /// weights, and the arithmetic of the update, are always float32.
  bool master_weights = true;
  /// Without master_weights: round updated bfloat16 weights up or down at random, where the nearer
  /// value is more probable in proportion to the distance, so that small updates count on average.
  /// float16 is rounded to nearest.
  bool stochastic_rounding = false;
  /// Threads that compute in the session's calls, at most 1,024; 0: the number of OpenMP.
  int64_t threads = 0;
  /// Check the gradients before any weight changes, and the weights after the update: a step with
  /// gradients or weights that are not finite is then an error, which names the first node that
  /// produced NaN or infinity. Without this option only the loss is checked: a step may leave
  /// weights that are not finite, and the next step reports it.
  bool check_finite = false;
  /// A checkpoint loads only into a session whose model has the same operators. Without this
  /// option, only the parameters, the kind of loss and the moments must be the same: use that for
  /// captured graphs, which may differ after each capture.
  bool bound_to_graph = true;
  /// Rewrites of the graph to turn off, by name (docs/look_inside.md lists them). Results then
  /// differ by rounding, if at all. A name that is not a pass is a ModelError.
  std::vector<std::string> disabled_passes{};
  /// The most memory that one call may hold, as "2GiB", "512M" or a number of bytes: parameters,
  /// moments, inputs, constants, results and intermediate values (docs/memory.md). If a step does
  /// not fit, backward computes values of forward again instead of keeping them; the results have
  /// the same bits. "least": the smallest plan that is found; "": no limit. Another text is a
  /// ModelError. If no plan of a call fits, the call throws OutOfMemoryError.
  std::string memory_limit{};
  /// Folder of a file for states (docs/memory.md), which is mapped into memory: the system writes
  /// its pages to the disk when memory is short, and reads them when a step needs them. The file
  /// has no name, and its space is free again when the session ends. memory_limit does not bound
  /// these states. A forked process cannot use the session. "": states are in memory. The
  /// constructor throws IoError if the folder cannot be written to or has too little space.
  std::string offload_folder{};
  /// What is on disk. In that file: "moments" (and other states in a checkpoint only), or "all":
  /// parameters and running statistics too, except those that the caller gave as `weights`. Or
  /// "frozen", without it: weights beside adapters, in the model's own file (docs/memory.md).
  std::string offload = "moments";
  Limits limits{};
  /// Where steps run. A node runs on the first of these that has a kernel for it, else on the CPU.
  /// Weights, moments, inputs and results stay in the host's memory. Empty: only the CPU.
  std::vector<ProviderChoice> providers{};
};

struct StepResult {
  double loss = 0;
  double lr = 0;                  ///< the learning rate that this step used
  double grad_norm = 0;           ///< before clipping; 0 unless clip_norm > 0 or grad_norm is set
  int64_t step = 0;               ///< number of steps done, this one included
  bool skipped = false;           ///< gradients overflowed at this loss scale: nothing was updated
  double loss_scale = 1;          ///< the scale of this step; 1 unless the precision is "fp16"
  std::vector<Tensor> outputs{};  ///< step_outputs, in order
};

struct EvalResult {
  std::optional<double> loss{};  ///< present when the label was given, or the loss is in the model
  /// The divisor of a mean cross entropy that ignores labels or weighs classes: the number of
  /// labels that count, or the sum of their weights. If it is 0, the loss is NaN. The mean over
  /// several batches is Σ loss · weight / Σ weight. Absent if each row counts once.
  std::optional<double> weight{};
  std::vector<Tensor> outputs{};  ///< every output of the model, in the order of output_info()
};

/// Sums of gradients that wait for apply_gradients().
struct AccumulatedGradients {
  int64_t parts = 0;  ///< calls of accumulate()
  /// What apply_gradients() divides the sums by: the sum of EvalResult::weight over the parts where
  /// the loss has such a weight, else the number of parts.
  double weight = 0;
  bool weighs = false;  ///< whether the loss has such a weight
  double loss = 0;      ///< the sum of loss · weight over the parts
  /// For each parameter, the sum of gradient · weight: of the parameter's shape, and of the dtype
  /// in which it is updated. The session's own memory, shared.
  std::map<std::string, Tensor> sums{};
};

/// Name and type of an input or output. Dynamic extents are -1; `symbols` has their names, and ""
/// for all others.
struct TensorInfo {
  std::string name;
  DType dtype = DType::undefined;
  bool has_rank = true;
  Dims dims{};
  std::vector<std::string> symbols{};
  bool sequence = false;     ///< a sequence of tensors of that type
  bool optional = false;     ///< may be absent
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
  size_t output_bytes = 0;    ///< the loss and other results for the caller
  size_t constant_bytes = 0;  ///< initializers that are not trained, and tables
  size_t peak_bytes = 0;      ///< of all the above together, while a step runs
  size_t run_bytes = 0;       ///< inputs included: what a memory limit bounds
  size_t memory_limit = 0;    ///< 0: none
  /// Parameters and moments in the file of offload_folder; in parameter_bytes and optimizer_bytes,
  /// but not in peak_bytes and run_bytes.
  size_t offloaded_bytes = 0;
  size_t kernels = 0;
  double specialise_ms = 0;
  std::vector<CompileStage> stages{};  ///< parts of specialise_ms, in the order in which they ran
  /// "412 MiB (parameters 114, moments 228, arena 70)"; if there is a limit, also the limit and
  /// run_bytes.
  std::string text() const;
};

/// A model, its loss and its optimizer as one compiled step: forward, backward and update in one
/// graph, planned ahead of time for each set of input shapes. Calls from several threads run one
/// after the other; a call from within a call (in a signal handler) is a ProviderError. Do not
/// write to inputs, or to memory that state() shares, during a call.
class TrainingSession {
 public:
  using Inputs = std::map<std::string, Tensor>;

  /// Throws ModelError (the model cannot be read; operators without a gradient, all listed; unknown
  /// parameter, output or loss; the loss depends on no trained parameter), ShapeError, IoError.
  explicit TrainingSession(const std::filesystem::path& model, TrainingOptions options = {});
  /// From a serialised model. External data is refused unless `folder` says where it lies.
  explicit TrainingSession(std::span<const std::byte> model, TrainingOptions options = {},
                           const std::filesystem::path& folder = {});
  /// `weights` holds the data of the initializers that it names; the model need not contain it.
  /// Trained weights, and running statistics that training updates, are written in place, without a
  /// copy: their memory must be writable. Throws ModelError for a name or type that the model does
  /// not have.
  TrainingSession(std::span<const std::byte> model, TrainingOptions options,
                  std::map<std::string, Tensor> weights);
  ~TrainingSession();
  TrainingSession(TrainingSession&&) noexcept;
  TrainingSession& operator=(TrainingSession&&) noexcept;

  // --- running ----------------------------------------------------------------------------------

  /// Forward, backward, update. Inputs are in the order of input_info(). If the dtype of an array
  /// differs from the input's, it is converted (also by eval(), gradients() and plan()): integers
  /// to integers that can hold the values and to floats, and floats of 16, 32 and 64 bits to each
  /// other. Labels may have one last axis of one element more or less than the loss takes. Labels
  /// of softmax_cross_entropy may be floats with whole values, or one-hot rows.
  ///
  /// Throws before any weight changes: ShapeError (wrong count, dtype or shape), DataError (a label
  /// out of range; a number that does not fit; the loss or, with check_finite, any value is NaN or
  /// infinite). For precision "fp16" see LossScaleOptions. With check_finite, an update that makes
  /// a weight that is not finite is a DataError too, and the session is as after a failed update.
  ///
  /// Weights are updated as soon as their gradients exist. If the step fails after the first
  /// update, some weights are of this step and some of the step before. All calls that read them
  /// then throw DataError, except state(), until load_checkpoint(), or set_weights() and
  /// set_optimizer_state(), have replaced all of them.
  StepResult step(std::span<const Tensor> inputs);
  StepResult step(std::initializer_list<Tensor> inputs) {
    return step(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }
  /// By name; every input must be there and no other.
  StepResult step(const Inputs& inputs);

  /// A step in several parts, for batches that do not fit in memory: runs forward and backward, and
  /// adds the gradients to those that wait for apply_gradients(). No weight changes. Running
  /// statistics and TrainingOptions::updates change at each part. In the result, `step` is the
  /// number of steps done, and `skipped` means that with "fp16" these gradients overflowed and were
  /// left out. A part of which no label counts adds nothing; its loss is NaN. Until
  /// apply_gradients(), step() and save_checkpoint() throw DataError. Throws as step().
  StepResult accumulate(std::span<const Tensor> inputs);
  StepResult accumulate(std::initializer_list<Tensor> inputs) {
    return accumulate(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }
  StepResult accumulate(const Inputs& inputs);
  /// Clips and updates with the mean of the accumulated gradients. If the parts have one size and
  /// the loss is a mean, the result is that of one step() on the whole batch. All parts have the
  /// same weight; with a mean cross entropy that ignores labels or weighs classes, the weight of a
  /// part is EvalResult::weight. `loss` of the result is the mean over the parts. If the gradients
  /// of all parts overflowed, the step is `skipped`. Throws DataError without parts; and, until
  /// drop_gradients(), after a part whose error has spoilt the sums; else as step().
  StepResult apply_gradients();
  int64_t accumulated() const;  ///< number of parts whose gradients wait
  void drop_gradients();        ///< discards these gradients
  /// The accumulated gradients, to combine them with those of other processes. The caller may write
  /// to the sums, and then calls set_accumulated(). If there are none, the sums are set to zero.
  AccumulatedGradients accumulated_gradients();
  /// The sums hold gradients of this weight and of this sum of loss · weight: apply_gradients()
  /// divides both by the weight. Throws DataError unless the weight is positive and finite.
  void set_accumulated(double weight, double loss);

  /// Forward in inference mode: no dropout, no update. Without the label there is no loss.
  EvalResult eval(std::span<const Tensor> inputs);
  EvalResult eval(std::initializer_list<Tensor> inputs) {
    return eval(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }
  EvalResult eval(const Inputs& inputs);

  /// The loss (in *loss unless null) and the gradient of each trained parameter, without clipping
  /// and without an update. Random numbers are those of the next step.
  std::map<std::string, Tensor> gradients(std::span<const Tensor> inputs, double* loss = nullptr);
  std::map<std::string, Tensor> gradients(const Inputs& inputs, double* loss = nullptr);

  // --- state ------------------------------------------------------------------------------------

  /// The inputs of step(): the model's inputs, then the label.
  const std::vector<TensorInfo>& input_info() const;
  std::vector<TensorInfo> output_info() const;       ///< the model's outputs
  std::vector<std::string> parameter_names() const;  ///< the trained ones, in the order of the file
  /// The weights that have adapters (TrainingOptions::lora_rank), in the order of the file. Those
  /// of parameter_names() are then "NAME.lora_A" and "NAME.lora_B", behind the model's own.
  std::vector<std::string> adapted_names() const;
  /// Float constants that are not trained: they scale or shift inputs, weigh the loss, are settings
  /// or scales of quantisation, single numbers outside of a layer, sparse, or Constant nodes. Names
  /// in TrainingOptions::frozen are not among them.
  std::vector<LeftOut> left_out() const;
  /// A note if the file fixes the number of rows of all inputs and TrainingOptions::loss is set:
  /// whether batches of any size are accepted, or why not. Else "".
  std::string batch_note() const;
  /// Running statistics that training normalisations keep up to date.
  std::vector<std::string> statistic_names() const;
  /// Texts on options that can be trained but are probably wrong, such as a loss of scores on an
  /// output that is normalised already. Usually empty.
  std::vector<std::string> warnings() const;
  /// Names of the optimizer's states: "momentum_buffer/NAME"; "exp_avg/NAME", "exp_avg_sq/NAME";
  /// "step/NAME" in groups with an optimizer of their own; "master/NAME" with
  /// TrainingOptions::master_weights.
  std::vector<std::string> optimizer_state_names() const;

  /// Copies by name: of the trained parameters; of the optimizer's states. Moments that are kept in
  /// fewer bits (OptimizerOptions::state_precision) are float32 here, without loss.
  std::map<std::string, Tensor> weights() const;
  std::map<std::string, Tensor> optimizer_state() const;
  /// The session's own memory of a parameter or state, shared: each step changes it. With the state
  /// precision "int8", "exp_avg/NAME" has codes, and "exp_avg_scale/NAME" the scales of its blocks.
  Tensor state(const std::string& name) const;
  /// Copies values into trained parameters and running statistics, or into the optimizer's states.
  /// Every tensor is checked (ModelError for an unknown name, ShapeError for another shape or
  /// dtype) before the first is written. Names left out keep their values. Moments are float32, as
  /// optimizer_state() gives them; those that are kept in fewer bits are rounded to nearest.
  void set_weights(const std::map<std::string, Tensor>& weights);
  void set_optimizer_state(const std::map<std::string, Tensor>& moments);

  int64_t step_count() const;
  /// Sets the count that bias correction and the schedule use. Parameters with a count of their own
  /// keep it; set_optimizer_state() sets those.
  void set_step_count(int64_t count);
  double lr() const;       ///< of the next step
  void set_lr(double lr);  ///< base rate, before the schedule's factor
  /// From the next step on; step_count() says where in the schedule that is. Throws ModelError as
  /// the constructor.
  void set_schedule(const ScheduleOptions& schedule);
  /// From the next step on, changes the optimizer of options().groups[i]: rate, betas, momentum,
  /// dampening, epsilon, weight decay. Nothing is compiled again. Throws ModelError for values out
  /// of range, and for options that are compiled in: the kind, nesterov, momentum from or to 0.
  void set_group(size_t i, const OptimizerOptions& optimizer);
  double loss_scale() const;  ///< of the next step; 1 unless the precision is "fp16"
  /// Throws DataError unless the precision is "fp16" and the scale within the options' bounds.
  void set_loss_scale(double scale);
  void set_seed(uint64_t seed);
  /// Number of runs so far. The random numbers of a run depend on this counter and the seed.
  uint64_t run_count() const;
  void set_run_count(uint64_t count);
  const TrainingOptions& options() const;

  // --- files ------------------------------------------------------------------------------------

  /// Writes parameters, moments, counters and `user` (JSON text of the caller) to the folder
  /// `path`. It replaces a checkpoint there only when the new one is complete and on disk. Several
  /// savers of one folder wait for each other, in other processes too. Throws IoError, and
  /// DataError if a count or `user` could not be loaded again; then the old checkpoint stays,
  /// unless the error says that the new one is in place.
  void save_checkpoint(const std::filesystem::path& path, const std::string& user = "{}") const;
  /// Verifies everything, then loads; returns `user`. Throws CheckpointError that names file and
  /// reason (damaged, or of another model or optimizer); then nothing has changed. The base
  /// learning rate and the seed become those of the checkpoint; the schedule stays that of the
  /// options. Moments of another state precision are converted, and checkpoint_note() says so.
  std::string load_checkpoint(const std::filesystem::path& path);
  /// A note on the checkpoint that was loaded last: options or schedule were others (names, values
  /// then and now); the number of threads was another, so that results may differ in their last
  /// bits; its moments were converted to the state precision of this session. Else "".
  std::string checkpoint_note() const;
  /// The checksums of the checkpoint that was loaded last, after hold_states_of() if that was
  /// called; "" if none was.
  std::string checkpoint_hash() const;

  /// Writes a file that trains and predicts without the model and without ONNX: steep/artifact.h,
  /// docs/runtime.md. It holds the weights, the optimizer's state, and a compiled step and
  /// prediction for the shapes of each of `batches`, which are arrays as step() takes them, or only
  /// a prediction where the label is left out. Throws ModelError where an artifact cannot hold what
  /// this session does: operators that are not in the list of docs/runtime.md, shapes that depend
  /// on data, the precision "fp16", moving averages. Throws ShapeError and DataError as step(), and
  /// IoError; then a file that was at `path` stays.
  void save_artifact(const std::filesystem::path& path,
                     std::span<const std::vector<Tensor>> batches) const;
  void save_artifact(const std::filesystem::path& path,
                     std::initializer_list<std::vector<Tensor>> batches) const {
    save_artifact(path, std::span<const std::vector<Tensor>>(batches.begin(), batches.size()));
  }

  /// Writes a copy of the model with the trained weights; the rest of the file does not change.
  /// Adapters are merged into their weights, or written beside them: ExportOptions. For inference,
  /// model_for_inference() rewrites it (steep/export.h). Then a loss that is an output of the model
  /// is removed, with the outputs that depend on the input TrainingOptions::label, and with inputs
  /// that nothing else reads. Throws ModelError if no output is left.
  /// The data of a model of more than 2 GiB is written beside the file: ExportOptions. External
  /// data that is not trained stays where it is if `path` is in the model's folder; else it is
  /// copied. Throws IoError; then a file that was at `path` does not change.
  void export_onnx(const std::filesystem::path& path, bool for_inference = false) const;
  void export_onnx(const std::filesystem::path& path, const ExportOptions& options) const;
  /// As one message that includes external data. Throws ModelError for more than 2 GiB.
  std::string export_onnx_bytes(bool for_inference = false, bool merge_adapters = true) const;

  // --- an optimizer's states that several processes divide: steep/parallel.h calls these -------

  /// Keeps the optimizer's states of these parameters, and frees those of all others, which other
  /// processes keep; counts of steps stay. From then on step(), apply_gradients() and
  /// save_artifact() throw DataError; optimizer_state(), set_optimizer_state() and state() have
  /// only the states that are kept; and load_checkpoint() takes those from a whole checkpoint.
  /// Throws ModelError for another name and with TrainingOptions::ema_decay, and DataError if
  /// gradients wait, or if it was called before. `receive`: if there is one, accumulate() hands it
  /// the gradient of each parameter, times the weight of the part, when backward has it, and frees
  /// it afterwards. It may not call the session; if it throws, so does accumulate(), and the caller
  /// restores running statistics. accumulated_gradients() then has the sums of these parameters
  /// only, which the caller sets to zero and adds up.
  using Receive = std::function<void(const std::string& parameter, const Tensor& gradient)>;
  void hold_states_of(const std::vector<std::string>& parameters, Receive receive = {});
  /// From now on, accumulate() calls `ready` for a parameter once its sum, as
  /// accumulated_gradients() has it, includes this part, while backward computes the others. Where
  /// it does not call it, the sum is there when accumulate() returns. `ready` may not call the
  /// session, nor throw. Another call replaces it. From now on, accumulated_gradients() does not
  /// set the sums to zero where no part waits. Throws DataError if gradients wait, and
  /// InternalError after hold_states_of() with `receive`.
  using Ready = std::function<void(const std::string& parameter)>;
  void on_sum(Ready ready);
  /// Those parameters, sorted; nothing before that call.
  std::optional<std::vector<std::string>> held_parameters() const;
  /// Names and types of the states of a parameter as a checkpoint contains them, also of states
  /// that other processes keep.
  std::vector<TensorInfo> states_of(const std::string& parameter) const;
  /// As apply_gradients(), but updates only the parameters of hold_states_of(). `norm`: of the mean
  /// gradient of all parameters, by which gradients are clipped. Afterwards, the caller writes the
  /// new values of all other parameters to state(), then calls complete_update(). Until then, and
  /// if this throws, the session is as after a failed update.
  StepResult apply_held_gradients(double norm);
  /// Throws as step() with check_finite. Throws DataError unless apply_held_gradients() was called.
  void complete_update();
  /// As save_checkpoint(), with `others`: all states that this session does not keep, by name.
  void save_checkpoint(const std::filesystem::path& path, const std::string& user,
                       const std::map<std::string, Tensor>& others) const;

  // --- looking inside ---------------------------------------------------------------------------

  /// Compiles for inputs of these types and shapes, without running.
  StepPlan plan(std::span<const Tensor> inputs);
  /// What the step for inputs of these types and shapes keeps and computes again, and what other
  /// memory limits would cost. Plans, but runs nothing: up to two seconds for 1,000 nodes. Throws
  /// as plan(), and ProviderError where the step is not planned as a whole.
  MemoryReport memory_report(std::span<const Tensor> inputs);
  /// Peak memory of parameters, moments and steps so far. Evaluation uses other memory.
  size_t peak_bytes() const;
  /// The compiled step: graph, kernels, memory plan.
  std::string dump(std::span<const Tensor> inputs, DumpFormat format = DumpFormat::text);
  /// Text of the step's graph before shapes are bound.
  std::string dump() const;
  /// Records one event per kernel from now on, until write_profile().
  void start_profile();
  /// Writes a Chrome/Perfetto trace (ui.perfetto.dev) and stops recording. Throws IoError.
  void write_profile(const std::filesystem::path& path);
  /// Adds an exchange with other processes to what is being recorded, if anything is.
  void record(const Exchange& exchange);

  struct Impl;  ///< sessions/training_impl.h

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace steep
