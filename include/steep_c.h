/* Steep's C API, of libsteep.so: train and run ONNX models from C and from whatever calls C.
 *
 *   steep_options* options = NULL;
 *   steep_training* session = NULL;
 *   steep_error* error = NULL;
 *   steep_options_new(STEEP_OPTIONS_TRAINING, &options, &error);
 *   steep_options_set_string(options, "loss", "softmax_cross_entropy", &error);
 *   if (steep_training_open("model.onnx", options, &session, &error)) {
 *     fprintf(stderr, "%s\n", steep_error_message(error));
 *   }
 *
 * docs/c_library.md is the quickstart. C99; from C++ it is the same. What is not here: weights that
 * stay in the caller's memory, sequences and optionals as inputs and outputs (DataError).
 *
 * Errors     Functions that can fail return a steep_code, STEEP_OK (0) upon success, and take a
 *            `steep_error** error` at the end, which may be NULL. Where it is not, *error is set:
 *            to NULL upon success, else to an error of the caller's, for steep_error_free(). What
 *            was there before is overwritten, not freed. Upon failure other results are not
 *            written. No C++ exception crosses.
 *
 * Handles    steep_training*, steep_options* and the like are names of objects, not addresses: the
 *            library looks each up and never follows it. NULL, a handle that was freed, one of
 *            another kind and any other address is STEEP_ERROR_ARGUMENT. No number is given twice,
 *            so that a freed handle stays one. (Pointers to anything else are followed: those must
 *            be NULL or good.)
 *
 * Ownership  What a function gives by a handle belongs to the caller, who frees it once by the
 *            function of its kind. Freeing NULL does nothing. An object that another thread's call
 *            works with goes when that call returns. `const` pointers that point into an object
 *            (names, extents, data) are good until its handle is freed. Strings and arrays that are
 *            passed in are copied, or read during the call only, and are the caller's.
 *
 * Threads    Any function may be called from any thread. Calls on one session take turns; calls on
 *            different ones run side by side. Options must not be set while another thread uses
 *            them. Arrays that are passed in must not be written meanwhile. OpenMP's settings
 *            (OMP_NUM_THREADS, omp_set_num_threads) say how many threads compute.
 *
 * Arrays     Dense and row-major. Extents outermost first, none for a scalar. An element type is a
 *            steep_dtype, the number of ONNX's TensorProto.DataType. bool is a byte, 0 or 1.
 *            Elements narrower than a byte have a byte each, their bits the low ones. Data is
 *            aligned to its element.
 *
 * Strings    UTF-8, ended by a NUL. Those that are given are never NULL; "" where there is nothing.
 *
 * Versions   SOVERSION 0, symbols STEEP_0.1. Structs never change; what is new comes as new
 *            functions. Enumerations may get further values. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define STEEP_API __attribute__((visibility("default")))
#else
#define STEEP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- codes, types and objects ---------------------------------------------------------------- */

/* The errors of steep/error.h; ARGUMENT is the C API's own. */
typedef enum steep_code {
  STEEP_OK = 0,
  STEEP_ERROR_MODEL = 1,         /* the ONNX model cannot be read, or cannot be trained */
  STEEP_ERROR_SHAPE = 2,         /* a shape or dtype disagrees with the model */
  STEEP_ERROR_DATA = 3,          /* the values fed are wrong: label out of range, missing input */
  STEEP_ERROR_PROVIDER = 4,      /* no kernel for a node on this provider, or the device failed */
  STEEP_ERROR_CHECKPOINT = 5,    /* a checkpoint is damaged or belongs to another model */
  STEEP_ERROR_OUT_OF_MEMORY = 6, /* memory cannot be allocated */
  STEEP_ERROR_IO = 7,            /* a file could not be read or written */
  STEEP_ERROR_INTERRUPTED = 8,   /* the call was asked to stop: steep_set_interrupt_check() */
  STEEP_ERROR_INTERNAL = 9,      /* a bug in Steep; please report it */
  STEEP_ERROR_ARGUMENT = 10      /* a null pointer, a wrong handle, an unknown option */
} steep_code;

typedef enum steep_dtype {
  STEEP_DTYPE_UNDEFINED = 0,
  STEEP_DTYPE_FLOAT32 = 1,
  STEEP_DTYPE_UINT8 = 2,
  STEEP_DTYPE_INT8 = 3,
  STEEP_DTYPE_UINT16 = 4,
  STEEP_DTYPE_INT16 = 5,
  STEEP_DTYPE_INT32 = 6,
  STEEP_DTYPE_INT64 = 7,
  STEEP_DTYPE_BOOL = 9,
  STEEP_DTYPE_FLOAT16 = 10,
  STEEP_DTYPE_FLOAT64 = 11,
  STEEP_DTYPE_UINT32 = 12,
  STEEP_DTYPE_UINT64 = 13,
  STEEP_DTYPE_BFLOAT16 = 16,
  STEEP_DTYPE_FLOAT8E4M3FN = 17,
  STEEP_DTYPE_FLOAT8E4M3FNUZ = 18,
  STEEP_DTYPE_FLOAT8E5M2 = 19,
  STEEP_DTYPE_FLOAT8E5M2FNUZ = 20,
  STEEP_DTYPE_UINT4 = 21,
  STEEP_DTYPE_INT4 = 22,
  STEEP_DTYPE_FLOAT4E2M1 = 23,
  STEEP_DTYPE_FLOAT8E8M0 = 24,
  STEEP_DTYPE_UINT2 = 25,
  STEEP_DTYPE_INT2 = 26,
  STEEP_DTYPE_FLOAT6E2M3 = 27,
  STEEP_DTYPE_FLOAT6E3M2 = 28
} steep_dtype;

typedef struct steep_error steep_error;
typedef struct steep_options steep_options;     /* of a session, a group, an export, … */
typedef struct steep_training steep_training;   /* a model, its loss and optimizer */
typedef struct steep_inference steep_inference; /* a model to run forward */
typedef struct steep_gradients steep_gradients; /* a model to run forward and backward, apart */
typedef struct steep_run steep_run;             /* a forward that waits for its backward */
typedef struct steep_tensors steep_tensors;     /* arrays with names */
typedef struct steep_bytes steep_bytes;         /* a serialised model, or a text */
typedef struct steep_strings steep_strings;     /* a list of names */
typedef struct steep_report steep_report;       /* what steep_check_model() found */

/* An array: what is fed, borrowed during the call; or what a steep_tensors holds. */
typedef struct steep_array {
  const char* name;    /* of an input; see steep_training_step() for NULL */
  int32_t dtype;       /* steep_dtype */
  int32_t rank;        /* number of extents, 0 to 64 */
  const int64_t* dims; /* may be NULL for rank 0 */
  const void* data;    /* may be NULL where there are no bytes */
  size_t bytes;        /* of the data: product of the extents times steep_dtype_size() */
} steep_array;

/* Name and type of an input or output of a model. */
typedef struct steep_value {
  const char* name;
  int32_t dtype;
  int32_t rank;               /* -1: any */
  const int64_t* dims;        /* -1: varies */
  const char* const* symbols; /* for each extent: the name of one that varies, else "" */
  int32_t is_sequence;        /* of tensors of that type */
  int32_t is_optional;        /* or nothing */
} steep_value;

/* --- the library ------------------------------------------------------------------------------ */

/* "0.1.0" */
STEEP_API const char* steep_version(void);
/* "ModelError", "ArgumentError", …; "OK" for 0; "" for a number that is no code. */
STEEP_API const char* steep_code_name(int32_t code);
/* "float32", as NumPy spells it; "undefined" for a number that is no type. */
STEEP_API const char* steep_dtype_name(int32_t dtype);
/* Bytes of an element in memory; 0 for a number that is no type. */
STEEP_API size_t steep_dtype_size(int32_t dtype);

/* Asks `stop` ten times a second, on the thread that called, wherever a call may take long;
 * anything but 0 ends the call with STEEP_ERROR_INTERRUPTED, a step only before any weight has
 * changed. Of the whole process. NULL: nobody is asked. `stop` must return: no longjmp, no
 * exception. */
STEEP_API void steep_set_interrupt_check(int (*stop)(void));

/* --- errors ----------------------------------------------------------------------------------- */

/* STEEP_OK for NULL, STEEP_ERROR_ARGUMENT for what is no error (any more). */
STEEP_API steep_code steep_error_code(const steep_error* error);
/* The whole text, as C++'s what(). Like all of these "" for NULL and for what is no error. */
STEEP_API const char* steep_error_message(const steep_error* error);
/* Its parts, "" where unknown: one sentence that says what went wrong; the node, or the value or
 * file where there is no node; its operator; what would have been right; what was found; what the
 * user can do. */
STEEP_API const char* steep_error_what(const steep_error* error);
STEEP_API const char* steep_error_node(const steep_error* error);
STEEP_API const char* steep_error_op(const steep_error* error);
STEEP_API const char* steep_error_expected(const steep_error* error);
STEEP_API const char* steep_error_received(const steep_error* error);
STEEP_API const char* steep_error_remedy(const steep_error* error);
/* This and the other functions that free return STEEP_OK, for NULL too, or STEEP_ERROR_ARGUMENT
 * for what is no such handle, and then free nothing. */
STEEP_API steep_code steep_error_free(steep_error* error);

/* --- options ---------------------------------------------------------------------------------- */

typedef enum steep_options_kind {
  STEEP_OPTIONS_TRAINING = 1,
  STEEP_OPTIONS_INFERENCE = 2,
  STEEP_OPTIONS_GRADIENT = 3, /* steep_gradient_model() */
  STEEP_OPTIONS_GROUP = 4,    /* parameters that differ: steep_options_add_group() */
  STEEP_OPTIONS_EXPORT = 5,   /* how a model is written to a file */
  STEEP_OPTIONS_GRADIENTS = 6 /* steep_gradients_open() */
} steep_options_kind;

/* Options with their defaults. Keys are the fields of the C++ API's options, whose headers (named
 * here) say what each means, as does docs/training.md:
 *
 *   training   TrainingOptions (steep/steep.h)
 *     strings   loss, output, label, optimizer ("adamw"), schedule ("constant"), precision ("fp32")
 *     numbers   lr (1e-3), weight_decay, momentum, dampening, beta1, beta2, epsilon,
 * momentum_decay, lr_decay, initial_accumulator_value, rho, alpha, min_lr_ratio, clip_norm,
 *               loss_scale, loss_scale_min, loss_scale_max, huber_delta, label_smoothing,
 * clip_value, ema_decay, class_weights (each call adds one); attributes.NAME of a registered
 *               optimizer
 *     integers  ignore_index, warmup_steps, total_steps, seed, loss_scale_window
 *     0 or 1    maximize, nesterov, amsgrad, decoupled_weight_decay, centered, bias_correction,
 *               grad_norm, master_weights, stochastic_rounding, check_finite, bound_to_graph
 *     lists     trainable, frozen, step_outputs, disabled_passes
 *   inference  InferenceOptions (steep/inference.h)
 *     integers  threads, seed;  0 or 1  optimize, check_finite;  lists  disabled_passes
 *   gradient   GradientOptions (steep/gradient.h)
 *     lists     wrt, outputs;  0 or 1  scalar_gradients
 *   group      ParameterGroup
 *     numbers   lr_multiplier, weight_decay; or, with the string `optimizer`, an optimizer of its
 *               own: lr and the rest of its settings, as above
 *   export     ExportOptions (steep/export.h)
 *     0 or 1    for_inference, external_data;  integers  max_file_bytes
 *   gradients  GradientSessionOptions (steep/gradient_session.h)
 *     lists     wrt, outputs;  strings  precision;  integers  seed
 *
 * The first three and the last have limits too (steep/limits.h), as integers: max_bytes, max_nodes,
 * max_inlined, max_depth, max_iterations, max_arrays. Values are looked at where the options are
 * used. */
STEEP_API steep_code steep_options_new(int32_t kind, steep_options** options, steep_error** error);
STEEP_API steep_code steep_options_free(steep_options* options);

/* STEEP_ERROR_ARGUMENT for an unknown key, naming those that there are, and for one of another
 * type. */
STEEP_API steep_code steep_options_set_string(steep_options* options, const char* key,
                                              const char* value, steep_error** error);
STEEP_API steep_code steep_options_set_number(steep_options* options, const char* key, double value,
                                              steep_error** error);
/* Also sets numbers. */
STEEP_API steep_code steep_options_set_integer(steep_options* options, const char* key,
                                               int64_t value, steep_error** error);
/* Appends to a list. */
STEEP_API steep_code steep_options_add(steep_options* options, const char* key, const char* value,
                                       steep_error** error);
/* Training: parameters that differ from the rest, as `group` (of STEEP_OPTIONS_GROUP) says. */
STEEP_API steep_code steep_options_add_group(steep_options* options, const char* const* names,
                                             size_t count, const steep_options* group,
                                             steep_error** error);
/* Training: what else a step writes, an initializer that becomes an output of the model. */
STEEP_API steep_code steep_options_add_update(steep_options* options, const char* initializer,
                                              const char* output, steep_error** error);
/* Training, inference, gradients: where to run, before the CPU. `keys` and `values`: `count`
 * options of the provider. */
STEEP_API steep_code steep_options_add_provider(steep_options* options, const char* name,
                                                const char* const* keys, const char* const* values,
                                                size_t count, steep_error** error);

/* --- results ---------------------------------------------------------------------------------- */

/* 0 for NULL and for what is no such handle. */
STEEP_API size_t steep_tensors_count(const steep_tensors* tensors);
/* The i-th array, or the one of a name (STEEP_ERROR_DATA when there is none). *array points into
 * `tensors`. */
STEEP_API steep_code steep_tensors_get(const steep_tensors* tensors, size_t i, steep_array* array,
                                       steep_error** error);
STEEP_API steep_code steep_tensors_find(const steep_tensors* tensors, const char* name,
                                        steep_array* array, steep_error** error);
STEEP_API steep_code steep_tensors_free(steep_tensors* tensors);

/* The bytes, followed by a NUL that does not count. "" and 0 for NULL and for what is no such
 * handle. */
STEEP_API const char* steep_bytes_data(const steep_bytes* bytes);
STEEP_API size_t steep_bytes_size(const steep_bytes* bytes);
STEEP_API steep_code steep_bytes_free(steep_bytes* bytes);

/* 0 for what is no such handle; "" for that, and where there are no `i` + 1 strings. */
STEEP_API size_t steep_strings_count(const steep_strings* strings);
STEEP_API const char* steep_strings_get(const steep_strings* strings, size_t i);
STEEP_API steep_code steep_strings_free(steep_strings* strings);

/* --- training --------------------------------------------------------------------------------- */

typedef struct steep_step {
  double loss;
  double lr;         /* that this step used */
  double grad_norm;  /* before clipping; 0 unless clip_norm > 0 or grad_norm is set */
  double loss_scale; /* that this step used; 1 unless the precision is "fp16" */
  int64_t step;      /* number of steps done, this one included */
  int32_t skipped;   /* 1: gradients overflowed at this loss scale, nothing was updated */
} steep_step;

typedef struct steep_evaluation {
  double loss;        /* NaN without a label */
  double weight;      /* what a mean cross entropy was divided by; NaN where each row counts once */
  int32_t has_loss;   /* 0 or 1 */
  int32_t has_weight; /* 0 or 1 */
} steep_evaluation;

typedef struct steep_plan { /* what a step costs at one set of input shapes; bytes */
  uint64_t arena_bytes, parameter_bytes, optimizer_bytes, output_bytes, constant_bytes, peak_bytes;
  uint64_t kernels;
  double specialise_ms;
} steep_plan;

/* `options` NULL: the defaults, for a model whose output is the loss. STEEP_ERROR_MODEL for what
 * cannot be read or trained (all obstacles are listed), SHAPE, IO; ARGUMENT for options of another
 * kind. */
STEEP_API steep_code steep_training_open(const char* path, const steep_options* options,
                                         steep_training** session, steep_error** error);
/* From a serialised model, which is copied. External data is refused unless `folder` (or NULL) says
 * where it lies. */
STEEP_API steep_code steep_training_open_bytes(const void* model, size_t size, const char* folder,
                                               const steep_options* options,
                                               steep_training** session, steep_error** error);
STEEP_API steep_code steep_training_free(steep_training* session);

/* Forward, backward, update. Inputs by name, every one that steep_training_inputs() lists and no
 * other; or, where all names are NULL, in its order. Other dtypes and forms of labels are converted
 * as TrainingSession::step() says. `step` and `outputs` (the step_outputs, in order) may be NULL.
 * STEEP_ERROR_SHAPE or _DATA before any weight changes. A failure after the first update leaves
 * weights of two steps mixed: what reads them is STEEP_ERROR_DATA then, until a checkpoint is
 * loaded, or all weights and optimizer state are set. */
STEEP_API steep_code steep_training_step(steep_training* session, const steep_array* inputs,
                                         size_t count, steep_step* step, steep_tensors** outputs,
                                         steep_error** error);
/* Forward in inference mode. The label may be left out; then there is no loss. `evaluation` and
 * `outputs` (all of the model's, in order) may be NULL. */
STEEP_API steep_code steep_training_eval(steep_training* session, const steep_array* inputs,
                                         size_t count, steep_evaluation* evaluation,
                                         steep_tensors** outputs, steep_error** error);
/* The loss (`loss` may be NULL) and the gradient of each trained parameter, without an update. */
STEEP_API steep_code steep_training_gradients(steep_training* session, const steep_array* inputs,
                                              size_t count, double* loss, steep_tensors** gradients,
                                              steep_error** error);

/* A part of a step: its gradients are added to those that wait for
 * steep_training_apply_gradients(). No weight changes. Otherwise as steep_training_step(). */
STEEP_API steep_code steep_training_accumulate(steep_training* session, const steep_array* inputs,
                                               size_t count, steep_step* step,
                                               steep_tensors** outputs, steep_error** error);
/* The step of the parts since the last one, of the mean of their gradients; `step` may be NULL.
 * STEEP_ERROR_DATA where there are none. */
STEEP_API steep_code steep_training_apply_gradients(steep_training* session, steep_step* step,
                                                    steep_error** error);
/* How many parts wait; forgetting them. */
STEEP_API steep_code steep_training_accumulated(const steep_training* session, int64_t* parts,
                                                steep_error** error);
STEEP_API steep_code steep_training_drop_gradients(steep_training* session, steep_error** error);

/* `count` values or names, which live as long as the session. Inputs are those of a step: the
 * model's, then the label. Parameters are those that are trained; statistics the running ones of
 * normalisations; the state is the optimizer's, "exp_avg/NAME" and so on. */
STEEP_API steep_code steep_training_inputs(const steep_training* session,
                                           const steep_value** inputs, size_t* count,
                                           steep_error** error);
STEEP_API steep_code steep_training_outputs(const steep_training* session,
                                            const steep_value** outputs, size_t* count,
                                            steep_error** error);
STEEP_API steep_code steep_training_parameters(const steep_training* session,
                                               const char* const** names, size_t* count,
                                               steep_error** error);
STEEP_API steep_code steep_training_statistics(const steep_training* session,
                                               const char* const** names, size_t* count,
                                               steep_error** error);
STEEP_API steep_code steep_training_state_names(const steep_training* session,
                                                const char* const** names, size_t* count,
                                                steep_error** error);
/* Float constants that are not trained, each with the reason. */
STEEP_API steep_code steep_training_left_out(const steep_training* session,
                                             const char* const** names, const char* const** reasons,
                                             size_t* count, steep_error** error);
/* What can be trained but is hardly meant, one text each; as a rule none. */
STEEP_API steep_code steep_training_warnings(const steep_training* session,
                                             const char* const** texts, size_t* count,
                                             steep_error** error);

/* Copies of the trained parameters, or of the optimizer's state: of all in one consistent state, or
 * where `names` is not NULL of `count` of them, in that order (STEEP_ERROR_MODEL for an unknown
 * one). */
STEEP_API steep_code steep_training_weights(const steep_training* session, const char* const* names,
                                            size_t count, steep_tensors** weights,
                                            steep_error** error);
STEEP_API steep_code steep_training_optimizer_state(const steep_training* session,
                                                    const char* const* names, size_t count,
                                                    steep_tensors** state, steep_error** error);
/* One parameter, statistic or moment. Its bytes are shared, not copied: they change with each step,
 * and must not be read during one. */
STEEP_API steep_code steep_training_state(const steep_training* session, const char* name,
                                          steep_tensors** state, steep_error** error);
/* Copies values in, of trained parameters and statistics, or of the optimizer's state. All are
 * looked at first: names, dtypes and shapes must be the session's. Those left out stay. */
STEEP_API steep_code steep_training_set_weights(steep_training* session, const steep_array* weights,
                                                size_t count, steep_error** error);
STEEP_API steep_code steep_training_set_optimizer_state(steep_training* session,
                                                        const steep_array* state, size_t count,
                                                        steep_error** error);

/* The learning rate of the next step; setting it sets the base rate, before the schedule's
 * factor. */
STEEP_API steep_code steep_training_lr(const steep_training* session, double* lr,
                                       steep_error** error);
STEEP_API steep_code steep_training_set_lr(steep_training* session, double lr, steep_error** error);
/* As bias correction and the schedule count. */
STEEP_API steep_code steep_training_step_count(const steep_training* session, int64_t* count,
                                               steep_error** error);
STEEP_API steep_code steep_training_set_step_count(steep_training* session, int64_t count,
                                                   steep_error** error);
/* Of the next step; can be set with the precision "fp16" only. */
STEEP_API steep_code steep_training_loss_scale(const steep_training* session, double* scale,
                                               steep_error** error);
STEEP_API steep_code steep_training_set_loss_scale(steep_training* session, double scale,
                                                   steep_error** error);
/* With the seed, the number of runs so far keys every random draw. */
STEEP_API steep_code steep_training_run_count(const steep_training* session, uint64_t* count,
                                              steep_error** error);
STEEP_API steep_code steep_training_set_run_count(steep_training* session, uint64_t count,
                                                  steep_error** error);
STEEP_API steep_code steep_training_set_seed(steep_training* session, uint64_t seed,
                                             steep_error** error);
/* From the next step on; kind "constant", "linear" or "cosine" (ScheduleOptions). */
STEEP_API steep_code steep_training_set_schedule(steep_training* session, const char* kind,
                                                 int64_t warmup_steps, int64_t total_steps,
                                                 double min_lr_ratio, steep_error** error);
/* From the next step on, other settings for the i-th group, which has an optimizer of its own. */
STEEP_API steep_code steep_training_set_group(steep_training* session, size_t i,
                                              const steep_options* group, steep_error** error);

/* Writes parameters, moments, counters and `user` (JSON; NULL: "{}") to the folder `path`. A
 * checkpoint there is replaced once the new one is whole and on disk. */
STEEP_API steep_code steep_training_save_checkpoint(const steep_training* session, const char* path,
                                                    const char* user, steep_error** error);
/* Verifies everything, then loads. `user` may be NULL. STEEP_ERROR_CHECKPOINT: nothing has
 * changed. */
STEEP_API steep_code steep_training_load_checkpoint(steep_training* session, const char* path,
                                                    steep_bytes** user, steep_error** error);
/* That the checkpoint loaded last was saved with another number of threads, so that results may
 * differ in bits; else empty. */
STEEP_API steep_code steep_training_checkpoint_note(const steep_training* session,
                                                    steep_bytes** note, steep_error** error);
/* A copy of the model with the trained weights. `options` (of STEEP_OPTIONS_EXPORT) may be NULL.
 * STEEP_ERROR_IO: what was at `path` is as it was. */
STEEP_API steep_code steep_training_export(const steep_training* session, const char* path,
                                           const steep_options* options, steep_error** error);
/* The same in memory, up to 2 GiB; `for_inference` 0 or 1. */
STEEP_API steep_code steep_training_export_bytes(const steep_training* session,
                                                 int32_t for_inference, steep_bytes** model,
                                                 steep_error** error);

/* Compiles for inputs of these types and shapes, without running. */
STEEP_API steep_code steep_training_plan(steep_training* session, const steep_array* inputs,
                                         size_t count, steep_plan* plan, steep_error** error);
/* The most memory that parameters, moments and steps took at one time so far. */
STEEP_API steep_code steep_training_peak_bytes(const steep_training* session, uint64_t* bytes,
                                               steep_error** error);
/* Text of the compiled step: graph, kernels, memory plan; without inputs (0) of its graph before
 * shapes are bound. */
STEEP_API steep_code steep_training_dump(steep_training* session, const steep_array* inputs,
                                         size_t count, steep_bytes** text, steep_error** error);
/* Records one event per kernel from now on; writes a Chrome/Perfetto trace and stops recording. */
STEEP_API steep_code steep_training_start_profile(steep_training* session, steep_error** error);
STEEP_API steep_code steep_training_write_profile(steep_training* session, const char* path,
                                                  steep_error** error);

/* --- inference -------------------------------------------------------------------------------- */

typedef struct steep_metadata {
  const char *producer, *graph_name, *graph_description, *domain, *description;
  int64_t version;
  size_t custom_count; /* of the two: keys and values of the model's own */
  const char* const* custom_keys;
  const char* const* custom_values;
} steep_metadata;

/* As steep_training_open() and _open_bytes(). */
STEEP_API steep_code steep_inference_open(const char* path, const steep_options* options,
                                          steep_inference** session, steep_error** error);
STEEP_API steep_code steep_inference_open_bytes(const void* model, size_t size, const char* folder,
                                                const steep_options* options,
                                                steep_inference** session, steep_error** error);
STEEP_API steep_code steep_inference_free(steep_inference* session);

/* Runs the model. Inputs by name, or all names NULL, as of a step; but dtypes are not converted.
 * `names`: `name_count` outputs to compute, in that order; NULL and 0: all. */
STEEP_API steep_code steep_inference_run(steep_inference* session, const steep_array* inputs,
                                         size_t count, const char* const* names, size_t name_count,
                                         steep_tensors** outputs, steep_error** error);
/* Which live as long as the session. `defaults`: what may be fed, too, inputs with a default. */
STEEP_API steep_code steep_inference_inputs(const steep_inference* session,
                                            const steep_value** inputs, size_t* count,
                                            steep_error** error);
STEEP_API steep_code steep_inference_defaults(const steep_inference* session,
                                              const steep_value** inputs, size_t* count,
                                              steep_error** error);
STEEP_API steep_code steep_inference_outputs(const steep_inference* session,
                                             const steep_value** outputs, size_t* count,
                                             steep_error** error);
/* What the model says about itself. */
STEEP_API steep_code steep_inference_metadata(const steep_inference* session,
                                              steep_metadata* metadata, steep_error** error);
STEEP_API steep_code steep_inference_start_profile(steep_inference* session, steep_error** error);
STEEP_API steep_code steep_inference_write_profile(steep_inference* session, const char* path,
                                                   steep_error** error);

/* --- forward and backward apart --------------------------------------------------------------- */

/* As steep_training_open() and _open_bytes(). `options`, of STEEP_OPTIONS_GRADIENTS, name in `wrt`
 * at least one input or initializer; the initializers among them are the session's weights. */
STEEP_API steep_code steep_gradients_open(const char* path, const steep_options* options,
                                          steep_gradients** session, steep_error** error);
STEEP_API steep_code steep_gradients_open_bytes(const void* model, size_t size, const char* folder,
                                                const steep_options* options,
                                                steep_gradients** session, steep_error** error);
STEEP_API steep_code steep_gradients_free(steep_gradients* session);

/* Runs the model as in training. Inputs by name, weights that are to be others in this run too; or
 * all names NULL, in order. They are copied, as far as backward reads them. `outputs`, in order,
 * may be NULL. Any number of runs may wait for their backward; a run may outlive the session. */
STEEP_API steep_code steep_gradients_forward(steep_gradients* session, const steep_array* inputs,
                                             size_t count, steep_tensors** outputs, steep_run** run,
                                             steep_error** error);
/* Runs it without dropout, and keeps nothing. */
STEEP_API steep_code steep_gradients_eval(steep_gradients* session, const steep_array* inputs,
                                          size_t count, steep_tensors** outputs,
                                          steep_error** error);
/* The gradient of the outputs, each weighted by the array of its name, for each name of `wrt`. None
 * (0): 1, where there is one output, of one element. STEEP_ERROR_DATA for a run of another session,
 * for one whose backward was done, and for an output that is unknown or has no gradient. */
STEEP_API steep_code steep_gradients_backward(steep_gradients* session, steep_run* run,
                                              const steep_array* output_gradients, size_t count,
                                              steep_tensors** gradients, steep_error** error);
STEEP_API steep_code steep_run_free(steep_run* run);

/* Values, which live as long as the session; `weights` are the initializers of `wrt`. */
STEEP_API steep_code steep_gradients_inputs(const steep_gradients* session,
                                            const steep_value** inputs, size_t* count,
                                            steep_error** error);
STEEP_API steep_code steep_gradients_outputs(const steep_gradients* session,
                                             const steep_value** outputs, size_t* count,
                                             steep_error** error);
STEEP_API steep_code steep_gradients_weight_values(const steep_gradients* session,
                                                   const steep_value** weights, size_t* count,
                                                   steep_error** error);
/* Copies of the weights; copying values in, all of which are looked at first. Those left out stay,
 * and runs that wait keep the weights that they ran with. */
STEEP_API steep_code steep_gradients_weights(const steep_gradients* session,
                                             steep_tensors** weights, steep_error** error);
STEEP_API steep_code steep_gradients_set_weights(steep_gradients* session,
                                                 const steep_array* weights, size_t count,
                                                 steep_error** error);

/* --- models ----------------------------------------------------------------------------------- */

typedef struct steep_obstacle {
  const char *op, *node, *path, *remedy, *what; /* steep/check.h */
} steep_obstacle;

/* Can this model be trained? `options` as of steep_training_open(). */
STEEP_API steep_code steep_check_model(const char* path, const steep_options* options,
                                       steep_report** report, steep_error** error);
/* 0 where it can be trained; and for what is no such handle. */
STEEP_API size_t steep_report_obstacle_count(const steep_report* report);
STEEP_API steep_code steep_report_obstacle(const steep_report* report, size_t i,
                                           steep_obstacle* obstacle, steep_error** error);
STEEP_API steep_code steep_report_free(steep_report* report);

/* The ONNX model of a model's gradients (steep/gradient.h). `options`, of STEEP_OPTIONS_GRADIENT,
 * name at least one value in `wrt`. */
STEEP_API steep_code steep_gradient_model(const char* path, const steep_options* options,
                                          steep_bytes** model, steep_error** error);
STEEP_API steep_code steep_gradient_model_bytes(const void* model, size_t size, const char* folder,
                                                const steep_options* options,
                                                steep_bytes** gradients, steep_error** error);
/* Copies a model for running it (steep/export.h). `options`, of STEEP_OPTIONS_EXPORT, may be
 * NULL. */
STEEP_API steep_code steep_write_for_inference(const char* model, const char* path,
                                               const steep_options* options, steep_error** error);

/* --- arrays in files -------------------------------------------------------------------------- */

/* Every array of an .npz or .safetensors file; writing one, as the extension says. */
STEEP_API steep_code steep_load_arrays(const char* path, steep_tensors** arrays,
                                       steep_error** error);
STEEP_API steep_code steep_save_arrays(const char* path, const steep_array* arrays, size_t count,
                                       steep_error** error);

/* --- plug-ins, operators and optimizers of one's own -------------------------------------------
 */

/* Loads a plug-in (steep/provider.h) for the rest of the process. Its code runs: load only what you
 * trust. `name`, the provider's, may be NULL. */
STEEP_API steep_code steep_register_provider(const char* library, steep_bytes** name,
                                             steep_error** error);
/* Names of the providers that have a device here. */
STEEP_API steep_code steep_available_providers(steep_strings** names, steep_error** error);
/* Registers the functions of a model file (steep/ops.h). `names`, of the new ones, may be NULL. */
STEEP_API steep_code steep_register_ops(const char* path, steep_strings** names,
                                        steep_error** error);
/* STEEP_ERROR_DATA when there is none of that name. */
STEEP_API steep_code steep_unregister_op(const char* name, steep_error** error);
STEEP_API steep_code steep_registered_ops(steep_strings** names, steep_error** error);

#ifdef __cplusplus
} /* extern "C" */
#endif
