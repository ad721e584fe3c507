// The table of the training options: one row for each field of the structs in steep/steep.h that
// users set by name. These rows define the attributes of the Python module, the keys in C, the
// flags of `steep train` with their help, and docs/options.md. Types and default values come from
// the structs. tests/python/program/test_options.py compares the parts that are written by hand,
// such as signatures in Python, and finds fields without a row.
//
// To add an option, give the struct a field and this table a row.
#pragma once

#include <limits>
#include <string_view>

#include "runtime/threads.h"
#include "steep/steep.h"

namespace steep {

struct OptionRow {
  std::string_view field;      ///< of the struct, and of the Python class
  std::string_view key;        ///< in C; also the keyword in Python
  std::string_view flag = "";  ///< of the program; "": none
  std::string_view help = "";
  /// The range of numbers that the program accepts.
  double low = std::numeric_limits<double>::lowest();
  double high = std::numeric_limits<double>::max();
  std::string_view choices = "";  ///< "a,b,c": the only values that the program accepts
  bool says_default = true;       ///< the program's help adds the default; false if `help` has it
};

/// Calls visit(row, member) for each; `member` is a pointer to a field of OptimizerOptions.
template <typename Visit>
void visit_optimizer_options(Visit&& visit) {
  using O = OptimizerOptions;
  visit(OptionRow{.field = "kind",
                  .key = "optimizer",
                  .help = "How weights are updated: a built-in optimizer, or a registered one"},
        &O::kind);
  visit(OptionRow{.field = "lr", .key = "lr", .flag = "--lr", .help = "Learning rate", .low = 0},
        &O::lr);
  visit(OptionRow{.field = "weight_decay",
                  .key = "weight_decay",
                  .flag = "--weight-decay",
                  .help = "Weight decay",
                  .low = 0},
        &O::weight_decay);
  visit(OptionRow{.field = "momentum",
                  .key = "momentum",
                  .flag = "--momentum",
                  .help = "Momentum (default: sgd and rmsprop 0, muon 0.95)",
                  .low = 0},
        &O::momentum);
  visit(OptionRow{.field = "dampening",
                  .key = "dampening",
                  .flag = "--dampening",
                  .help = "Dampening (sgd)"},
        &O::dampening);
  visit(OptionRow{.field = "nesterov",
                  .key = "nesterov",
                  .flag = "--nesterov",
                  .help = "Nesterov's momentum (default: sgd no, muon yes)"},
        &O::nesterov);
  visit(OptionRow{.field = "beta1",
                  .key = "beta1",
                  .flag = "--beta1",
                  .help = "Decay of the first moment",
                  .low = 0,
                  .high = 1},
        &O::beta1);
  visit(OptionRow{.field = "beta2",
                  .key = "beta2",
                  .flag = "--beta2",
                  .help = "Decay of the second moment",
                  .low = 0,
                  .high = 1},
        &O::beta2);
  visit(OptionRow{.field = "epsilon",
                  .key = "epsilon",
                  .flag = "--epsilon",
                  .help = "Added to the denominator (default: 1e-8; adagrad 1e-10, adadelta 1e-6, "
                          "muon 1e-7); with adafactor\nits least value (default: of the type)",
                  .low = 0},
        &O::epsilon);
  visit(OptionRow{.field = "momentum_decay",
                  .key = "momentum_decay",
                  .flag = "--momentum-decay",
                  .help = "Decay of the momentum (nadam)",
                  .low = 0},
        &O::momentum_decay);
  visit(OptionRow{.field = "lr_decay",
                  .key = "lr_decay",
                  .flag = "--lr-decay",
                  .help = "Decay of the learning rate (adagrad)",
                  .low = 0},
        &O::lr_decay);
  visit(OptionRow{.field = "initial_accumulator_value",
                  .key = "initial_accumulator_value",
                  .flag = "--initial-accumulator",
                  .help = "Initial value of the sums of squares (adagrad)",
                  .low = 0},
        &O::initial_accumulator_value);
  visit(OptionRow{.field = "rho",
                  .key = "rho",
                  .flag = "--rho",
                  .help = "Decay of the averages (adadelta)",
                  .low = 0,
                  .high = 1},
        &O::rho);
  visit(OptionRow{.field = "alpha",
                  .key = "alpha",
                  .flag = "--alpha",
                  .help = "Decay of the average of squares (rmsprop)",
                  .low = 0},
        &O::alpha);
  visit(OptionRow{.field = "centered",
                  .key = "centered",
                  .flag = "--centered",
                  .help = "Divide by the variance (rmsprop)"},
        &O::centered);
  visit(OptionRow{.field = "amsgrad",
                  .key = "amsgrad",
                  .flag = "--amsgrad",
                  .help = "Divide by the greatest second moment so far (adam, adamw)"},
        &O::amsgrad);
  visit(OptionRow{.field = "decoupled_weight_decay",
                  .key = "decoupled_weight_decay",
                  .flag = "--decoupled-weight-decay",
                  .help = "Shrink weights, not gradients (adam, nadam, radam)"},
        &O::decoupled_weight_decay);
  visit(OptionRow{.field = "bias_correction",
                  .key = "bias_correction",
                  .help = "Correct moments for their start at zero (adam, adamw, lamb)"},
        &O::bias_correction);
  visit(OptionRow{.field = "beta2_decay",
                  .key = "beta2_decay",
                  .flag = "--beta2-decay",
                  .help = "Exponent of the step in the weight of new squares (adafactor)",
                  .high = 0},
        &O::beta2_decay);
  visit(OptionRow{.field = "epsilon2",
                  .key = "epsilon2",
                  .flag = "--epsilon2",
                  .help = "Least root mean square of a weight (adafactor)",
                  .low = 0},
        &O::epsilon2);
  visit(OptionRow{.field = "clip_threshold",
                  .key = "clip_threshold",
                  .flag = "--clip-threshold",
                  .help = "Greatest root mean square of a step; d in PyTorch (adafactor)",
                  .low = 1},
        &O::clip_threshold);
  visit(OptionRow{.field = "ns_coefficients",
                  .key = "ns_coefficients",
                  .flag = "--ns-coefficients",
                  .help = "The three coefficients of the Newton-Schulz iteration (muon; default: "
                          "3.4445,-4.775,2.0315)"},
        &O::ns_coefficients);
  visit(OptionRow{.field = "ns_steps",
                  .key = "ns_steps",
                  .flag = "--ns-steps",
                  .help = "Steps of the Newton-Schulz iteration (muon)",
                  .low = 0},
        &O::ns_steps);
  visit(OptionRow{.field = "adjust_lr_fn",
                  .key = "adjust_lr_fn",
                  .flag = "--adjust-lr-fn",
                  .help = "Factor of the rate for the shape of a matrix: original (default),\n"
                          "match_rms_adamw or spectral_unclamped (muon)",
                  .choices = "original,match_rms_adamw,spectral_unclamped",
                  .says_default = false},
        &O::adjust_lr_fn);
  visit(OptionRow{.field = "state_precision",
                  .key = "state_precision",
                  .flag = "--state-precision",
                  .help = "How moments are kept between steps: float32, bfloat16 or int8 (sgd, "
                          "adam, adamw, lamb), as in\n--state-precision int8: a quarter of the "
                          "memory",
                  .choices = "float32,bfloat16,int8"},
        &O::state_precision);
  visit(OptionRow{.field = "maximize",
                  .key = "maximize",
                  .flag = "--maximize",
                  .help = "Maximise the loss"},
        &O::maximize);
}

/// The same for ScheduleOptions.
template <typename Visit>
void visit_schedule_options(Visit&& visit) {
  using O = ScheduleOptions;
  visit(OptionRow{.field = "kind",
                  .key = "schedule",
                  .flag = "--schedule",
                  .help = "constant, linear or cosine",
                  .choices = "constant,linear,cosine"},
        &O::kind);
  visit(OptionRow{.field = "warmup_steps",
                  .key = "warmup_steps",
                  .flag = "--warmup-steps",
                  .help = "Steps of linear warm-up",
                  .low = 0,
                  .says_default = false},
        &O::warmup_steps);
  visit(OptionRow{.field = "total_steps",
                  .key = "total_steps",
                  .flag = "--total-steps",
                  .help = "Length of the schedule (default: the run)",
                  .low = 1,
                  .says_default = false},
        &O::total_steps);
  visit(OptionRow{.field = "min_lr_ratio",
                  .key = "min_lr_ratio",
                  .flag = "--min-lr-ratio",
                  .help = "Final learning rate / --lr",
                  .low = 0,
                  .high = 1,
                  .says_default = false},
        &O::min_lr_ratio);
}

/// The same for LossScaleOptions.
template <typename Visit>
void visit_loss_scale_options(Visit&& visit) {
  using O = LossScaleOptions;
  visit(OptionRow{.field = "initial",
                  .key = "loss_scale",
                  .flag = "--loss-scale",
                  .help = "Initial loss scale (fp16)",
                  .low = 1,
                  .high = O{}.max},
        &O::initial);
  visit(
      OptionRow{.field = "growth_interval",
                .key = "loss_scale_window",
                .flag = "--loss-scale-window",
                .help = "Double the loss scale after this number of steps without overflow (fp16)",
                .low = 0},
      &O::growth_interval);
  visit(OptionRow{.field = "min",
                  .key = "loss_scale_min",
                  .help = "At this loss scale an overflow is an error (fp16)"},
        &O::min);
  visit(OptionRow{.field = "max", .key = "loss_scale_max", .help = "Greatest loss scale (fp16)"},
        &O::max);
}

/// The same for the fields of TrainingOptions that define the loss and what is trained.
template <typename Visit>
void visit_model_options(Visit&& visit) {
  using O = TrainingOptions;
  visit(OptionRow{.field = "loss",
                  .key = "loss",
                  .flag = "--loss",
                  .help = "mse, l1, huber, softmax_cross_entropy, nll, binary_cross_entropy or\n"
                          "binary_cross_entropy_with_logits, or an ONNX file (scores, labels) => "
                          "(loss);\nwithout it the loss is an output of the model",
                  .says_default = false},
        &O::loss);
  visit(OptionRow{.field = "output",
                  .key = "output",
                  .flag = "--output",
                  .help = "Output or inner float value that is the loss, or that the loss reads "
                          "(default: the only\noutput, or 'loss')",
                  .says_default = false},
        &O::output);
  visit(
      OptionRow{
          .field = "label", .key = "label", .flag = "--label", .help = "Name of the label input"},
      &O::label);
  visit(OptionRow{.field = "ignore_index",
                  .key = "ignore_index",
                  .flag = "--ignore-index",
                  .help = "Label that softmax_cross_entropy and nll skip"},
        &O::ignore_index);
  visit(OptionRow{.field = "huber_delta",
                  .key = "huber_delta",
                  .flag = "--huber-delta",
                  .help = "Distance from which huber is linear",
                  .low = std::numeric_limits<double>::min()},
        &O::huber_delta);
  visit(OptionRow{.field = "label_smoothing",
                  .key = "label_smoothing",
                  .flag = "--label-smoothing",
                  .help =
                      "Share of the label that is spread over all classes (softmax_cross_entropy)",
                  .low = 0,
                  .high = 1,
                  .says_default = false},
        &O::label_smoothing);
  visit(OptionRow{.field = "class_weights",
                  .key = "class_weights",
                  .flag = "--class-weights",
                  .help = "Weight of each class, as in 1,2,0.5 (softmax_cross_entropy, nll)",
                  .low = 0},
        &O::class_weights);
  visit(
      OptionRow{
          .field = "trainable",
          .key = "trainable",
          .flag = "--train",
          .help =
              "Initializers to train, or patterns as 'head.*' (default: all floats that act as\n"
              "weights). Integers that DequantizeLinear reads are trained as floats if named, and\n"
              "exported as integers again"},
      &O::trainable);
  visit(OptionRow{.field = "frozen",
                  .key = "frozen",
                  .flag = "--freeze",
                  .help = "Initializers not to train, or patterns as 'encoder.*'"},
        &O::frozen);
  visit(OptionRow{.field = "lora_rank",
                  .key = "lora_rank",
                  .flag = "--lora",
                  .help = "Rank of low-rank adapters, as in 8: these and what --train names are "
                          "trained, all else stays",
                  .low = 1,
                  .says_default = false},
        &O::lora_rank);
  visit(OptionRow{.field = "lora_alpha",
                  .key = "lora_alpha",
                  .flag = "--lora-alpha",
                  .help = "Adapters count by this number / their rank (default: the rank)",
                  .low = std::numeric_limits<double>::min()},
        &O::lora_alpha);
  visit(OptionRow{.field = "lora_targets",
                  .key = "lora_targets",
                  .flag = "--targets",
                  .help = "Weights that get adapters, or patterns as '*.q_proj.*' (default: the "
                          "matrices of all products)"},
        &O::lora_targets);
}

/// The same for the fields of TrainingOptions that say what a step may use.
template <typename Visit>
void visit_resource_options(Visit&& visit) {
  using O = TrainingOptions;
  visit(OptionRow{.field = "threads",
                  .key = "threads",
                  .flag = "--threads",
                  .help = "Threads that compute (default: the cores there are, or "
                          "OMP_NUM_THREADS)",
                  .low = 1,
                  .high = kMostThreads,
                  .says_default = false},
        &O::threads);
  visit(OptionRow{.field = "memory_limit",
                  .key = "memory_limit",
                  .flag = "--memory-limit",
                  .help = "The most memory of a step, as in 2GiB: backward computes again what "
                          "does not fit",
                  .says_default = false},
        &O::memory_limit);
  visit(OptionRow{.field = "offload_folder",
                  .key = "offload_folder",
                  .flag = "--offload-folder",
                  .help = "Folder of a temporary file for states that do not fit in memory, as in "
                          "/var/tmp",
                  .says_default = false},
        &O::offload_folder);
  visit(OptionRow{.field = "offload",
                  .key = "offload",
                  .flag = "--offload",
                  .help = "What is on disk: in that file moments of the optimizer, or all with "
                          "parameters;\nor, with --lora, frozen weights, which stay in the model's "
                          "own file",
                  .choices = "moments,all,frozen"},
        &O::offload);
  visit(OptionRow{.field = "disabled_passes",
                  .key = "disabled_passes",
                  .flag = "--disable-pass",
                  .help = "Leave out a rewrite of the graph; may be given several times, or with "
                          "commas"},
        &O::disabled_passes);
}

/// The same for the fields of TrainingOptions that define how a step is made and run.
template <typename Visit>
void visit_step_options(Visit&& visit) {
  using O = TrainingOptions;
  visit(OptionRow{.field = "clip_norm",
                  .key = "clip_norm",
                  .flag = "--clip-norm",
                  .help = "Bound on the gradients' global norm",
                  .low = 0,
                  .says_default = false},
        &O::clip_norm);
  visit(OptionRow{.field = "clip_value",
                  .key = "clip_value",
                  .flag = "--clip-value",
                  .help = "Bound on each element of the gradients, after that on the norm",
                  .low = 0,
                  .says_default = false},
        &O::clip_value);
  visit(OptionRow{.field = "ema_decay",
                  .key = "ema_decay",
                  .flag = "--ema",
                  .help = "Decay, as in 0.999, of averages of the weights, which are validated and "
                          "exported instead",
                  .low = 0,
                  .high = 1,
                  .says_default = false},
        &O::ema_decay);
  visit(OptionRow{.field = "grad_norm",
                  .key = "grad_norm",
                  .flag = "--grad-norm",
                  .help = "Record the gradients' global norm"},
        &O::grad_norm);
  visit(OptionRow{.field = "step_outputs",
                  .key = "step_outputs",
                  .help = "Outputs that a step returns beside the loss"},
        &O::step_outputs);
  visit(OptionRow{.field = "precision",
                  .key = "precision",
                  .flag = "--precision",
                  .help = "fp32, or bf16 or fp16: matrix products in 16 bits, weights in float32",
                  .choices = "fp32,bf16,fp16"},
        &O::precision);
  visit(OptionRow{.field = "seed",
                  .key = "seed",
                  .flag = "--seed",
                  .help = "Seed of shuffling, dropout and adapters",
                  .low = 0},
        &O::seed);
  visit(OptionRow{.field = "check_finite",
                  .key = "check_finite",
                  .flag = "--check-finite",
                  .help = "Raise an error if gradients (before the update) or weights (after it) "
                          "are NaN or infinite; without it, only the loss is checked"},
        &O::check_finite);
  visit(OptionRow{.field = "master_weights",
                  .key = "master_weights",
                  .flag = "!--no-master-weights",
                  .help = "Train weights of float16 and bfloat16 without a float32 copy: small "
                          "updates are lost"},
        &O::master_weights);
  visit(OptionRow{.field = "stochastic_rounding",
                  .key = "stochastic_rounding",
                  .flag = "--stochastic-rounding",
                  .help = "With --no-master-weights: round bfloat16 weights at random, so that "
                          "small updates count on average"},
        &O::stochastic_rounding);
  visit(OptionRow{.field = "bound_to_graph",
                  .key = "bound_to_graph",
                  .help = "A checkpoint loads only for a model with the same operators; without "
                          "it, for one with the same parameters"},
        &O::bound_to_graph);
  visit_resource_options(visit);
}

/// Calls visit(row, field) for every field of `options`, those of nested structs included.
template <typename Visit>
void visit_fields(OptimizerOptions& o, Visit&& visit) {
  visit_optimizer_options([&](const OptionRow& row, auto member) { visit(row, o.*member); });
}
template <typename Visit>
void visit_fields(TrainingOptions& o, Visit&& visit) {
  const auto own = [&](const OptionRow& row, auto member) { visit(row, o.*member); };
  visit_model_options(own);
  visit_fields(o.optimizer, visit);
  visit_schedule_options(
      [&](const OptionRow& row, auto member) { visit(row, o.schedule.*member); });
  visit_loss_scale_options(
      [&](const OptionRow& row, auto member) { visit(row, o.loss_scale.*member); });
  visit_step_options(own);
}

}  // namespace steep
