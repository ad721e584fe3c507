/* The C API of libsteep.so: train and run ONNX models from C and from languages that call C.
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
 * docs/c_library.md is the quickstart. The header is C99, and C++ may include it. It includes
 * steep_c_models.h, which has the functions that do not train (inference, forward and backward
 * apart, models, arrays in files, plug-ins), and steep_c_parallel.h, those for several processes.
 *
 * Errors     A function that can fail returns a steep_code: STEEP_OK (0) on success. Its last
 *            argument is `steep_error** error`, which may be NULL. If it is not NULL, the function
 *            sets *error: to NULL on success, otherwise to an error that the caller owns and frees
 *            by steep_error_free(). The previous value of *error is overwritten, not freed. On
 *            failure no other result is written. No C++ exception leaves the library.
 *
 * Handles    steep_training*, steep_options* and the other opaque pointers are handles: the library
 *            looks each up in a table and never dereferences it. NULL, a freed handle, a handle of
 *            another kind or any other address gives STEEP_ERROR_ARGUMENT. A number is never used
 *            twice, so a freed handle stays invalid. (All other pointers are dereferenced: they
 *            must be NULL or valid.)
 *
 * Ownership  The caller owns each handle that a function returns, and frees it once by the function
 *            of its kind. Freeing NULL does nothing. If another thread's call uses the object, it
 *            is destroyed when that call returns. `const` pointers into an object (names, extents,
 *            data) are valid until its handle is freed. The caller keeps the strings and arrays
 *            that it passes: they are copied, or read during the call only, except by the functions
 *            that say that they use the caller's memory from then on.
 *
 * Threads    Any function may be called from any thread. Calls on one session run one after the
 *            other; calls on different sessions run in parallel. Do not set options while another
 *            thread uses them. Do not write to arrays that a running call reads. The option
 *            `threads`, or else OpenMP (OMP_NUM_THREADS, omp_set_num_threads), sets their number.
 *            A calling thread needs a stack of 1 MiB: nothing can report one that is too small.
 *
 * Arrays     Dense and row-major; the outermost extent comes first, and a scalar has none. The
 *            element type is a steep_dtype, the number of ONNX's TensorProto.DataType. A bool is
 *            one byte, 0 or 1. An element narrower than a byte takes the low bits of one byte. Data
 *            is aligned to the element.
 *
 * Strings    UTF-8, terminated by NUL. A returned string is never NULL; it is "" if there is none.
 *
 * Versions   SOVERSION 0, symbols STEEP_0.1. Structs never change; new features are new functions.
 *            Enumerations may get more values. */
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
  STEEP_ERROR_DATA = 3,          /* wrong values in the input: label out of range, missing input */
  STEEP_ERROR_PROVIDER = 4,      /* no kernel for a node on this provider, or the device failed */
  STEEP_ERROR_CHECKPOINT = 5,    /* a checkpoint is damaged or belongs to another model */
  STEEP_ERROR_OUT_OF_MEMORY = 6, /* memory cannot be allocated */
  STEEP_ERROR_IO = 7,            /* a file could not be read or written */
  STEEP_ERROR_INTERRUPTED = 8,   /* the call was asked to stop: steep_set_interrupt_check() */
  STEEP_ERROR_INTERNAL = 9,      /* a bug in Steep; please report it */
  STEEP_ERROR_ARGUMENT = 10,     /* a null pointer, a wrong handle, an unknown option */
  STEEP_ERROR_PEER_LOST = 11     /* another process of the training has ended: steep_c_parallel.h */
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
typedef struct steep_run steep_run;             /* a forward whose backward has not run yet */
typedef struct steep_tensors steep_tensors;     /* arrays with names */
typedef struct steep_bytes steep_bytes;         /* a serialised model, or a text */
typedef struct steep_strings steep_strings;     /* a list of names */
typedef struct steep_report steep_report;       /* what steep_check_model() found */
typedef struct steep_memory steep_memory;       /* what steep_training_memory_report() found */
typedef struct steep_data steep_data;           /* tensors, sequences and absent values, by name */
typedef struct steep_batches steep_batches;     /* mini-batches of arrays */

/* An array: an input, read during the call only; or an array of a steep_tensors. */
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
  int32_t is_sequence;        /* 1: a sequence of tensors of that type */
  int32_t is_optional;        /* 1: may be absent */
} steep_value;

/* --- the library ------------------------------------------------------------------------------ */

/* "0.1.0" */
STEEP_API const char* steep_version(void);
/* "ModelError", "ArgumentError", …; "OK" for 0; "" for an unknown number. */
STEEP_API const char* steep_code_name(int32_t code);
/* The name as in NumPy, such as "float32"; "undefined" for an unknown number. */
STEEP_API const char* steep_dtype_name(int32_t dtype);
/* Bytes of an element in memory; 0 for an unknown number. */
STEEP_API size_t steep_dtype_size(int32_t dtype);

/* Long calls call `stop` ten times a second, on the thread of the call. If it returns anything but
 * 0, the call ends with STEEP_ERROR_INTERRUPTED; a step ends only before any weight has changed.
 * The setting applies to the whole process; NULL removes it. `stop` must return: no longjmp, no
 * exception. */
STEEP_API void steep_set_interrupt_check(int (*stop)(void));

/* --- errors ----------------------------------------------------------------------------------- */

/* STEEP_OK for NULL, STEEP_ERROR_ARGUMENT for an invalid or freed handle. */
STEEP_API steep_code steep_error_code(const steep_error* error);
/* The whole text, as C++'s what(). This and the next functions return "" for NULL and for an
 * invalid handle. */
STEEP_API const char* steep_error_message(const steep_error* error);
/* The parts of the text, "" if unknown: a sentence that says what went wrong; the node (or value,
 * or file); its operator; what was expected; what was received; what the user can do. */
STEEP_API const char* steep_error_what(const steep_error* error);
STEEP_API const char* steep_error_node(const steep_error* error);
STEEP_API const char* steep_error_op(const steep_error* error);
STEEP_API const char* steep_error_expected(const steep_error* error);
STEEP_API const char* steep_error_received(const steep_error* error);
STEEP_API const char* steep_error_remedy(const steep_error* error);
/* All functions that free return STEEP_OK, also for NULL. For an invalid handle they return
 * STEEP_ERROR_ARGUMENT and free nothing. */
STEEP_API steep_code steep_error_free(steep_error* error);

/* --- options ---------------------------------------------------------------------------------- */

typedef enum steep_options_kind {
  STEEP_OPTIONS_TRAINING = 1,
  STEEP_OPTIONS_INFERENCE = 2,
  STEEP_OPTIONS_GRADIENT = 3,  /* steep_gradient_model() */
  STEEP_OPTIONS_GROUP = 4,     /* settings of some parameters: steep_options_add_group() */
  STEEP_OPTIONS_EXPORT = 5,    /* how a model is written to a file */
  STEEP_OPTIONS_GRADIENTS = 6, /* steep_gradients_open() */
  STEEP_OPTIONS_BATCHES = 7,   /* steep_batches_new() */
  STEEP_OPTIONS_PARALLEL = 8   /* steep_parallel_new() */
} steep_options_kind;

/* Creates options with their default values. The keys are the fields of the options of the C++ API;
 * the headers named here and docs/training.md explain each:
 *
 *   training   TrainingOptions (steep/steep.h)
 *     strings   loss, output, label, optimizer ("adamw"), schedule ("constant"), memory_limit,
 *               precision ("fp32"), state_precision, adjust_lr_fn, offload_folder, offload;  lists
 *               trainable, frozen, lora_targets, step_outputs, disabled_passes, class_weights,
 *               ns_coefficients
 *     numbers   lr (1e-3), weight_decay, momentum, dampening, beta1, beta2, epsilon, epsilon2, rho,
 *               momentum_decay, lr_decay, initial_accumulator_value, alpha, min_lr_ratio,
 *               clip_norm, clip_value, loss_scale, loss_scale_min, loss_scale_max, huber_delta,
 *               label_smoothing, ema_decay, beta2_decay, clip_threshold, lora_alpha
 *     integers  ignore_index, warmup_steps, total_steps, seed, loss_scale_window, ns_steps,
 *               lora_rank, threads
 *     0 or 1    maximize, nesterov, amsgrad, decoupled_weight_decay, centered, bias_correction,
 *               grad_norm, master_weights, stochastic_rounding, check_finite, bound_to_graph
 *   inference  InferenceOptions (steep/inference.h)
 *     integers  threads, seed;  lists  disabled_passes
 *     0 or 1    optimize, check_finite, open_batch, running_statistics
 *   gradient   GradientOptions (steep/gradient.h)
 *     lists     wrt, outputs;  0 or 1  scalar_gradients
 *   group      ParameterGroup
 *     numbers   lr_multiplier, weight_decay; or the string `optimizer` and its settings, as above
 *   export     ExportOptions (steep/export.h)
 *     0 or 1    for_inference, external_data, merge_adapters;  integers  max_file_bytes
 *   gradients  GradientSessionOptions (steep/gradient_session.h);  integers  seed, threads
 *     lists     wrt, outputs, disabled_passes;  strings  precision, memory_limit
 *   batches    BatchOptions (steep/data.h);  integers  batch_size (32), seed
 *     0 or 1    shuffle (1), drop_last
 *   parallel   DataParallel (steep/parallel.h);  integers  zero;  strings  wire_precision
 *
 * Training, inference, gradient and gradients also have limits (steep/limits.h), as integers:
 * max_bytes, max_nodes, max_inlined, max_depth, max_iterations, max_arrays. A value is checked when
 * the options are used. Attributes of a registered optimizer are numbers, attributes.NAME. */
STEEP_API steep_code steep_options_new(int32_t kind, steep_options** options, steep_error** error);
STEEP_API steep_code steep_options_free(steep_options* options);

/* STEEP_ERROR_ARGUMENT for a key of another type and for an unknown key; the error lists all. */
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
/* Training: gives the `count` parameters in `names` the settings of `group` (STEEP_OPTIONS_GROUP).
 */
STEEP_API steep_code steep_options_add_group(steep_options* options, const char* const* names,
                                             size_t count, const steep_options* group,
                                             steep_error** error);
/* Training: at each step, also write the value of `output` of the model to `initializer`. */
STEEP_API steep_code steep_options_add_update(steep_options* options, const char* initializer,
                                              const char* output, steep_error** error);
/* Parallel: `value` must be the same in all processes, as the hash of their data. */
STEEP_API steep_code steep_options_add_fact(steep_options* options, const char* name,
                                            const char* value, steep_error** error);
/* Training: the loss is this serialised model, which is copied, as TrainingOptions::loss_model. The
 * key `loss` is only a name then. */
STEEP_API steep_code steep_options_set_loss_model(steep_options* options, const void* model,
                                                  size_t size, steep_error** error);
/* Training, inference, gradients: use this provider before the CPU. `keys` and `values` are the
 * `count` options of the provider. */
STEEP_API steep_code steep_options_add_provider(steep_options* options, const char* name,
                                                const char* const* keys, const char* const* values,
                                                size_t count, steep_error** error);

/* --- results ---------------------------------------------------------------------------------- */

/* 0 for NULL and for an invalid handle. */
STEEP_API size_t steep_tensors_count(const steep_tensors* tensors);
/* The i-th array, or the array with this name (STEEP_ERROR_DATA if there is none). *array points
 * into `tensors`. */
STEEP_API steep_code steep_tensors_get(const steep_tensors* tensors, size_t i, steep_array* array,
                                       steep_error** error);
STEEP_API steep_code steep_tensors_find(const steep_tensors* tensors, const char* name,
                                        steep_array* array, steep_error** error);
STEEP_API steep_code steep_tensors_free(steep_tensors* tensors);

/* The bytes, followed by a NUL that is not counted. "" and 0 for NULL and for an invalid handle. */
STEEP_API const char* steep_bytes_data(const steep_bytes* bytes);
STEEP_API size_t steep_bytes_size(const steep_bytes* bytes);
STEEP_API steep_code steep_bytes_free(steep_bytes* bytes);

/* The count is 0 and a string is "" for an invalid handle; a string is "" too if `i` is too large.
 */
STEEP_API size_t steep_strings_count(const steep_strings* strings);
STEEP_API const char* steep_strings_get(const steep_strings* strings, size_t i);
STEEP_API steep_code steep_strings_free(steep_strings* strings);

/* --- training --------------------------------------------------------------------------------- */

typedef struct steep_step {
  double loss;
  double lr;         /* the rate of this step */
  double grad_norm;  /* before clipping; 0 unless clip_norm > 0 or grad_norm is set */
  double loss_scale; /* the scale of this step; 1 unless the precision is "fp16" */
  int64_t step;      /* number of steps done, this one included */
  int32_t skipped;   /* 1: gradients overflowed at this loss scale, nothing was updated */
} steep_step;

typedef struct steep_evaluation {
  double loss;        /* NaN without a label */
  double weight;      /* divisor of a mean cross entropy; NaN if each row counts once */
  int32_t has_loss;   /* 0 or 1 */
  int32_t has_weight; /* 0 or 1 */
} steep_evaluation;

typedef struct steep_plan { /* of a call at one set of input shapes: StepPlan (steep/steep.h) */
  /* Memory in bytes. */
  uint64_t arena_bytes, parameter_bytes, optimizer_bytes, output_bytes, constant_bytes, peak_bytes;
  uint64_t run_bytes;       /* inputs included: what a memory limit bounds */
  uint64_t memory_limit;    /* 0: none */
  uint64_t offloaded_bytes; /* in the file of offload_folder */
  uint64_t kernels;
  double specialise_ms;
} steep_plan;

typedef enum steep_dump_format {
  STEEP_DUMP_TEXT = 0,   /* the compiled graph, kernels, memory plan */
  STEEP_DUMP_PASSES = 1, /* the graph before the first pass, and after each pass that changed it */
  STEEP_DUMP_HTML = 2    /* one page with the plan as a table and pictures of the memory */
} steep_dump_format;

typedef struct steep_memory_plan {
  uint64_t bytes; /* memory at its peak */
  double ms;      /* estimated time of all its nodes */
} steep_memory_plan;

typedef struct steep_memory_choice { /* a node of forward that backward could run again */
  const char *node, *op;
  uint64_t bytes; /* of its results */
  double ms;      /* estimated time of running it once more */
  int32_t again;  /* 1: backward runs it again */
} steep_memory_choice;

typedef struct steep_memory_report { /* MemoryReport (steep/memory_report.h) */
  uint64_t limit;                    /* in bytes; 0: none */
  steep_memory_plan planned;         /* the plan that runs */
  steep_memory_plan plain;           /* the plan that would run without a limit */
  const steep_memory_plan* plans;    /* from the fastest and largest to the slowest and smallest */
  size_t plan_count;
  const steep_memory_choice* choices; /* in the order of forward */
  size_t choice_count;
  const char* text; /* a table of the choices, and one line per plan */
} steep_memory_report;

/* `options` NULL: the defaults, for a model whose output is the loss. Errors: MODEL if the model
 * cannot be read or trained (the text lists all obstacles), SHAPE, IO; ARGUMENT for options of
 * another kind. */
STEEP_API steep_code steep_training_open(const char* path, const steep_options* options,
                                         steep_training** session, steep_error** error);
/* Opens a serialised model and copies it. `folder` is the folder of its external data; if it is
 * NULL, a model with external data is refused. */
STEEP_API steep_code steep_training_open_bytes(const void* model, size_t size, const char* folder,
                                               const steep_options* options,
                                               steep_training** session, steep_error** error);
/* Opens a serialised model whose weights are in the caller's memory: `weights` has the data of the
 * `count` initializers that it names, which the model need not contain. Trained weights and running
 * statistics are written in place. The memory must be writable and must exist until the session,
 * and each steep_tensors of steep_training_state(), is freed. STEEP_ERROR_MODEL for a name or type
 * that the model does not have. */
STEEP_API steep_code steep_training_open_weights(const void* model, size_t size,
                                                 const steep_options* options,
                                                 const steep_array* weights, size_t count,
                                                 steep_training** session, steep_error** error);
STEEP_API steep_code steep_training_free(steep_training* session);

/* Runs forward, backward and the update. Pass exactly the inputs that steep_training_inputs()
 * lists: by name, or in that order if all names are NULL. Other dtypes and forms of labels are
 * converted as in TrainingSession::step(). `step` and `outputs` (the step_outputs, in order) may be
 * NULL. STEEP_ERROR_SHAPE and _DATA come before any weight changes. After a failure during the
 * update the weights belong to two steps: functions that read them return STEEP_ERROR_DATA until a
 * checkpoint is loaded, or all weights and the optimizer state are set. */
STEEP_API steep_code steep_training_step(steep_training* session, const steep_array* inputs,
                                         size_t count, steep_step* step, steep_tensors** outputs,
                                         steep_error** error);
/* Runs forward in inference mode. Without the label there is no loss. `evaluation` and `outputs`
 * (all outputs of the model, in order) may be NULL. */
STEEP_API steep_code steep_training_eval(steep_training* session, const steep_array* inputs,
                                         size_t count, steep_evaluation* evaluation,
                                         steep_tensors** outputs, steep_error** error);
/* The loss (`loss` may be NULL) and the gradient of each trained parameter, without an update. */
STEEP_API steep_code steep_training_gradients(steep_training* session, const steep_array* inputs,
                                              size_t count, double* loss, steep_tensors** gradients,
                                              steep_error** error);

/* Runs forward and backward of a part of a step. Its gradients are added up until
 * steep_training_apply_gradients(); no weight changes. A part of which no label counts adds
 * nothing; its loss is NaN. Otherwise as steep_training_step(). */
STEEP_API steep_code steep_training_accumulate(steep_training* session, const steep_array* inputs,
                                               size_t count, steep_step* step,
                                               steep_tensors** outputs, steep_error** error);
/* Updates the weights by the mean of the gradients of all parts since the last update. `step` may
 * be NULL. STEEP_ERROR_DATA if there are no parts. */
STEEP_API steep_code steep_training_apply_gradients(steep_training* session, steep_step* step,
                                                    steep_error** error);
/* The number of parts since the last update. The second function discards their gradients. */
STEEP_API steep_code steep_training_accumulated(const steep_training* session, int64_t* parts,
                                                steep_error** error);
STEEP_API steep_code steep_training_drop_gradients(steep_training* session, steep_error** error);
/* To combine these gradients with those of other processes (AccumulatedGradients). `weight`: what
 * steep_training_apply_gradients() divides by; `loss`: the sum of loss times weight over the parts;
 * `sums`: for each parameter, the sum of gradient times weight. All three may be NULL. The arrays
 * are the session's own memory, which the caller may write to until the next call; it then calls
 * the second function with the new weight (positive and finite) and sum of losses. Without parts,
 * the sums are set to zero. */
STEEP_API steep_code steep_training_accumulated_gradients(steep_training* session, double* weight,
                                                          double* loss, steep_tensors** sums,
                                                          steep_error** error);
STEEP_API steep_code steep_training_set_accumulated(steep_training* session, double weight,
                                                    double loss, steep_error** error);

/* `count` values or names, valid as long as the session. The inputs are those of a step: the inputs
 * of the model, then the label. The parameters are the trained ones. The statistics are the running
 * statistics of normalisations. State names are those of the optimizer, such as "exp_avg/NAME". */
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
/* The weights that have adapters (the option lora_rank). */
STEEP_API steep_code steep_training_adapted(const steep_training* session,
                                            const char* const** names, size_t* count,
                                            steep_error** error);
/* The float constants that are not trained, each with the reason. */
STEEP_API steep_code steep_training_left_out(const steep_training* session,
                                             const char* const** names, const char* const** reasons,
                                             size_t* count, steep_error** error);
/* One text for each suspicious thing in the model, such as a softmax before a cross entropy. */
STEEP_API steep_code steep_training_warnings(const steep_training* session,
                                             const char* const** texts, size_t* count,
                                             steep_error** error);

/* Copies the trained parameters, or the optimizer's state, as they are between two steps. `names`
 * NULL: all; otherwise the `count` named ones, in that order (STEEP_ERROR_MODEL for an unknown
 * name). */
STEEP_API steep_code steep_training_weights(const steep_training* session, const char* const* names,
                                            size_t count, steep_tensors** weights,
                                            steep_error** error);
STEEP_API steep_code steep_training_optimizer_state(const steep_training* session,
                                                    const char* const* names, size_t count,
                                                    steep_tensors** state, steep_error** error);
/* One parameter, statistic or moment. Its memory is shared, not copied: each step changes it, and
 * it must not be read during a step. */
STEEP_API steep_code steep_training_state(const steep_training* session, const char* name,
                                          steep_tensors** state, steep_error** error);
/* Copies values into trained parameters and statistics, or into the optimizer's state. All names,
 * dtypes and shapes are checked before the first copy. Values that are not passed stay. */
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
/* The number of steps done, which bias correction and the schedule use. */
STEEP_API steep_code steep_training_step_count(const steep_training* session, int64_t* count,
                                               steep_error** error);
STEEP_API steep_code steep_training_set_step_count(steep_training* session, int64_t count,
                                                   steep_error** error);
/* The loss scale of the next step. Only sessions of precision "fp16" can set it. */
STEEP_API steep_code steep_training_loss_scale(const steep_training* session, double* scale,
                                               steep_error** error);
STEEP_API steep_code steep_training_set_loss_scale(steep_training* session, double scale,
                                                   steep_error** error);
/* The number of runs so far. It and the seed determine every random number. */
STEEP_API steep_code steep_training_run_count(const steep_training* session, uint64_t* count,
                                              steep_error** error);
STEEP_API steep_code steep_training_set_run_count(steep_training* session, uint64_t count,
                                                  steep_error** error);
STEEP_API steep_code steep_training_set_seed(steep_training* session, uint64_t seed,
                                             steep_error** error);
/* Sets the schedule from the next step on; `kind` is "constant", "linear" or "cosine"
 * (ScheduleOptions). */
STEEP_API steep_code steep_training_set_schedule(steep_training* session, const char* kind,
                                                 int64_t warmup_steps, int64_t total_steps,
                                                 double min_lr_ratio, steep_error** error);
/* Changes the settings of the i-th group with an optimizer of its own, from the next step on. */
STEEP_API steep_code steep_training_set_group(steep_training* session, size_t i,
                                              const steep_options* group, steep_error** error);

/* Writes parameters, moments, counters and `user` (JSON; NULL: "{}") to the folder `path`. An older
 * checkpoint there is replaced after the new one is complete and on disk. */
STEEP_API steep_code steep_training_save_checkpoint(const steep_training* session, const char* path,
                                                    const char* user, steep_error** error);
/* Verifies the whole checkpoint, then loads it. `user` may be NULL. After STEEP_ERROR_CHECKPOINT
 * nothing has changed. */
STEEP_API steep_code steep_training_load_checkpoint(steep_training* session, const char* path,
                                                    steep_bytes** user, steep_error** error);
/* A text if the file fixes the number of rows of all inputs and the option "loss" is set: whether
 * batches of any size are accepted, or why not. Otherwise empty. */
STEEP_API steep_code steep_training_batch_note(const steep_training* session, steep_bytes** note,
                                               steep_error** error);
/* A text if the last loaded checkpoint was saved with another number of threads, so that results
 * may differ in the last bits; otherwise empty. */
STEEP_API steep_code steep_training_checkpoint_note(const steep_training* session,
                                                    steep_bytes** note, steep_error** error);
/* The checksums of the checkpoint that was loaded last, as a text; empty if none was. */
STEEP_API steep_code steep_training_checkpoint_hash(const steep_training* session,
                                                    steep_bytes** hash, steep_error** error);
/* Writes a copy of the model with the trained weights. `options` (STEEP_OPTIONS_EXPORT) may be
 * NULL. After STEEP_ERROR_IO the old file at `path` is unchanged. */
STEEP_API steep_code steep_training_export(const steep_training* session, const char* path,
                                           const steep_options* options, steep_error** error);
/* The same in memory, with all data, up to 2 GiB. Of the options, for_inference and merge_adapters
 * count; with external_data or max_file_bytes it is STEEP_ERROR_ARGUMENT. */
STEEP_API steep_code steep_training_export_bytes(const steep_training* session,
                                                 const steep_options* options, steep_bytes** model,
                                                 steep_error** error);

/* Compiles for inputs of these types and shapes, without running. */
STEEP_API steep_code steep_training_plan(steep_training* session, const steep_array* inputs,
                                         size_t count, steep_plan* plan, steep_error** error);
/* The peak so far of the memory of parameters, moments and steps, in bytes. */
STEEP_API steep_code steep_training_peak_bytes(const steep_training* session, uint64_t* bytes,
                                               steep_error** error);
/* What the step keeps and what backward computes again, and what other memory limits would cost.
 * Plans, but runs nothing: up to two seconds for 1,000 nodes. The pointers of *report are valid
 * until `memory` is freed. */
STEEP_API steep_code steep_training_memory_report(steep_training* session,
                                                  const steep_array* inputs, size_t count,
                                                  steep_memory** memory, steep_error** error);
STEEP_API steep_code steep_memory_get(const steep_memory* memory, steep_memory_report* report,
                                      steep_error** error);
STEEP_API steep_code steep_memory_free(steep_memory* memory);
/* The compiled step in a steep_dump_format. With `count` 0: the graph before shapes are bound,
 * which is only there as STEEP_DUMP_TEXT. */
STEEP_API steep_code steep_training_dump(steep_training* session, const steep_array* inputs,
                                         size_t count, int32_t format, steep_bytes** text,
                                         steep_error** error);
/* The first starts to record one event per kernel. The second writes them as a Chrome/Perfetto
 * trace and stops. */
STEEP_API steep_code steep_training_start_profile(steep_training* session, steep_error** error);
STEEP_API steep_code steep_training_write_profile(steep_training* session, const char* path,
                                                  steep_error** error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#include "steep_c_models.h"
#include "steep_c_parallel.h"
