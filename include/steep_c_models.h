/* The functions of the C API that do not train. steep_c.h includes this header, and has the rules
 * for errors, handles, arrays and threads. */
#pragma once

#include "steep_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- inference -------------------------------------------------------------------------------- */

typedef struct steep_metadata {
  const char *producer, *graph_name, *graph_description, *domain, *description;
  int64_t version;
  size_t custom_count; /* length of both lists: the metadata properties of the model */
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

/* Runs the model. Inputs are passed as to a step; other dtypes are converted. `names`: the
 * `name_count` outputs to compute, in that order; NULL and 0: all. */
STEEP_API steep_code steep_inference_run(steep_inference* session, const steep_array* inputs,
                                         size_t count, const char* const* names, size_t name_count,
                                         steep_tensors** outputs, steep_error** error);
/* As steep_inference_run(), for values of any kind (steep_data below): inputs and results may be
 * sequences and absent optionals. */
STEEP_API steep_code steep_inference_run_data(steep_inference* session, const steep_data* inputs,
                                              const char* const* names, size_t name_count,
                                              steep_data** outputs, steep_error** error);
/* Values, valid as long as the session. The defaults are inputs that have a default value. */
STEEP_API steep_code steep_inference_inputs(const steep_inference* session,
                                            const steep_value** inputs, size_t* count,
                                            steep_error** error);
STEEP_API steep_code steep_inference_defaults(const steep_inference* session,
                                              const steep_value** inputs, size_t* count,
                                              steep_error** error);
STEEP_API steep_code steep_inference_outputs(const steep_inference* session,
                                             const steep_value** outputs, size_t* count,
                                             steep_error** error);
/* The metadata of the model file. */
STEEP_API steep_code steep_inference_metadata(const steep_inference* session,
                                              steep_metadata* metadata, steep_error** error);
/* Memory and kernels of a run of all outputs for inputs of these types and shapes; all 0 if shapes
 * depend on data. The second gives the compiled graph in a steep_dump_format. */
STEEP_API steep_code steep_inference_plan(steep_inference* session, const steep_array* inputs,
                                          size_t count, steep_plan* plan, steep_error** error);
STEEP_API steep_code steep_inference_dump(steep_inference* session, const steep_array* inputs,
                                          size_t count, int32_t format, steep_bytes** text,
                                          steep_error** error);
STEEP_API steep_code steep_inference_start_profile(steep_inference* session, steep_error** error);
STEEP_API steep_code steep_inference_write_profile(steep_inference* session, const char* path,
                                                   steep_error** error);

/* --- values of any kind ----------------------------------------------------------------------- */

typedef enum steep_datum_kind {
  STEEP_DATUM_ABSENT = 0, /* an optional without a value */
  STEEP_DATUM_TENSOR = 1,
  STEEP_DATUM_SEQUENCE = 2 /* of tensors */
} steep_datum_kind;

typedef struct steep_datum {
  const char* name;
  int32_t kind;             /* steep_datum_kind */
  const steep_array* items; /* one for a tensor; those of a sequence, with empty names */
  size_t count;
} steep_datum;

/* A collection without values. Do not add to it while another thread uses it. */
STEEP_API steep_code steep_data_new(steep_data** data, steep_error** error);
STEEP_API steep_code steep_data_free(steep_data* data);
/* Adds a tensor under its name; a sequence of `count` tensors, whose names are ignored; an absent
 * value. The bytes are copied. STEEP_ERROR_ARGUMENT for a name that is there already. */
STEEP_API steep_code steep_data_add_tensor(steep_data* data, const steep_array* tensor,
                                           steep_error** error);
STEEP_API steep_code steep_data_add_sequence(steep_data* data, const char* name,
                                             const steep_array* items, size_t count,
                                             steep_error** error);
STEEP_API steep_code steep_data_add_absent(steep_data* data, const char* name, steep_error** error);
/* 0 for NULL and for an invalid handle. */
STEEP_API size_t steep_data_count(const steep_data* data);
/* The i-th value. *datum points into `data`. STEEP_ERROR_DATA for a sequence of sequences. */
STEEP_API steep_code steep_data_get(const steep_data* data, size_t i, steep_datum* datum,
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

/* Runs forward in training mode. Pass inputs by name, and also weights that have other values in
 * this run; or inputs in order if all names are NULL. Arrays that backward reads are copied.
 * `outputs` (all, in order) may be NULL. Any number of runs may exist; a run may outlive the
 * session. */
STEEP_API steep_code steep_gradients_forward(steep_gradients* session, const steep_array* inputs,
                                             size_t count, steep_tensors** outputs, steep_run** run,
                                             steep_error** error);
/* Runs forward in inference mode, without a later backward. */
STEEP_API steep_code steep_gradients_eval(steep_gradients* session, const steep_array* inputs,
                                          size_t count, steep_tensors** outputs,
                                          steep_error** error);
/* Runs backward: gives the gradient for each name of `wrt`. `output_gradients` has the gradient of
 * each output, by name; `count` may be 0 if the only output has one element, whose gradient is then
 * 1. STEEP_ERROR_DATA for a run of another session, for a run whose backward was done, and for an
 * output that is unknown or has no gradient. */
STEEP_API steep_code steep_gradients_backward(steep_gradients* session, steep_run* run,
                                              const steep_array* output_gradients, size_t count,
                                              steep_tensors** gradients, steep_error** error);
STEEP_API steep_code steep_run_free(steep_run* run);

/* Values, valid as long as the session. The weights are the initializers among `wrt`. */
STEEP_API steep_code steep_gradients_inputs(const steep_gradients* session,
                                            const steep_value** inputs, size_t* count,
                                            steep_error** error);
STEEP_API steep_code steep_gradients_outputs(const steep_gradients* session,
                                             const steep_value** outputs, size_t* count,
                                             steep_error** error);
STEEP_API steep_code steep_gradients_weight_values(const steep_gradients* session,
                                                   const steep_value** weights, size_t* count,
                                                   steep_error** error);
/* The first copies the weights out, the second copies values in, after it has checked all. Weights
 * that are not passed stay. Existing runs keep the weights of their forward. */
STEEP_API steep_code steep_gradients_weights(const steep_gradients* session,
                                             steep_tensors** weights, steep_error** error);
STEEP_API steep_code steep_gradients_set_weights(steep_gradients* session,
                                                 const steep_array* weights, size_t count,
                                                 steep_error** error);
/* From now on forward reads these weights in the caller's memory, which must exist until other
 * values are set or bound, or the session is freed. Types are checked as by the function above.
 * Forward copies what backward reads. */
STEEP_API steep_code steep_gradients_bind_weights(steep_gradients* session,
                                                  const steep_array* weights, size_t count,
                                                  steep_error** error);
/* All weights in one array of shape [elements], in the order of steep_gradients_weight_values().
 * The first gives the number of elements. The second joins one array for each weight (weights or
 * their gradients) to one called "flat". The third binds all weights to one array in the caller's
 * memory, as the function above. */
STEEP_API steep_code steep_gradients_weight_count(const steep_gradients* session, int64_t* elements,
                                                  steep_error** error);
STEEP_API steep_code steep_gradients_flatten(const steep_gradients* session,
                                             const steep_array* arrays, size_t count,
                                             steep_tensors** flat, steep_error** error);
STEEP_API steep_code steep_gradients_bind_flat(steep_gradients* session, const steep_array* flat,
                                               steep_error** error);

/* For each output, 1 if it may have a gradient, else 0; valid as long as the session. */
STEEP_API steep_code steep_gradients_differentiable(const steep_gradients* session,
                                                    const int32_t** flags, size_t* count,
                                                    steep_error** error);
/* Memory and kernels of a forward and its backward, and their compiled graph, as for inference. */
STEEP_API steep_code steep_gradients_plan(steep_gradients* session, const steep_array* inputs,
                                          size_t count, steep_plan* plan, steep_error** error);
STEEP_API steep_code steep_gradients_dump(steep_gradients* session, const steep_array* inputs,
                                          size_t count, int32_t format, steep_bytes** text,
                                          steep_error** error);
STEEP_API steep_code steep_gradients_start_profile(steep_gradients* session, steep_error** error);
STEEP_API steep_code steep_gradients_write_profile(steep_gradients* session, const char* path,
                                                   steep_error** error);

/* --- models ----------------------------------------------------------------------------------- */

typedef struct steep_obstacle {
  const char *op, *node, *path, *remedy, *what; /* steep/check.h */
} steep_obstacle;

/* Can this model be trained? `options` as of steep_training_open(). */
STEEP_API steep_code steep_check_model(const char* path, const steep_options* options,
                                       steep_report** report, steep_error** error);
STEEP_API steep_code steep_check_model_bytes(const void* model, size_t size, const char* folder,
                                             const steep_options* options, steep_report** report,
                                             steep_error** error);
/* The obstacles to training. The count is 0 if the model can be trained, and for an invalid handle.
 * All pointers are valid until `report` is freed. */
STEEP_API size_t steep_report_obstacle_count(const steep_report* report);
STEEP_API steep_code steep_report_obstacle(const steep_report* report, size_t i,
                                           steep_obstacle* obstacle, steep_error** error);
/* Obstacles to outputs that the loss does not read. */
STEEP_API size_t steep_report_unread_count(const steep_report* report);
STEEP_API steep_code steep_report_unread(const steep_report* report, size_t i,
                                         steep_obstacle* obstacle, steep_error** error);
/* The initializers that would be trained, as far as known; the others as steep_training_left_out()
 * and steep_training_warnings(). */
STEEP_API steep_code steep_report_parameters(const steep_report* report,
                                             const steep_value** parameters, size_t* count,
                                             steep_error** error);
STEEP_API steep_code steep_report_left_out(const steep_report* report, const char* const** names,
                                           const char* const** reasons, size_t* count,
                                           steep_error** error);
STEEP_API steep_code steep_report_warnings(const steep_report* report, const char* const** texts,
                                           size_t* count, steep_error** error);
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

/* The same for a serialised model, up to 2 GiB. `folder` is the folder of its external data, which
 * the copy includes; if it is NULL, such tensors stay external. */
STEEP_API steep_code steep_model_for_inference(const void* model, size_t size, const char* folder,
                                               steep_bytes** copy, steep_error** error);

/* --- arrays in files, mini-batches ------------------------------------------------------------ */

/* Reads all arrays of an .npz or .safetensors file; writes one, in the format of the extension. */
STEEP_API steep_code steep_load_arrays(const char* path, steep_tensors** arrays,
                                       steep_error** error);
STEEP_API steep_code steep_save_arrays(const char* path, const steep_array* arrays, size_t count,
                                       steep_error** error);

/* As steep_load_arrays(), but arrays that lie in the file as they are in memory are mapped and not
 * read (map_arrays() in steep/data.h). The file must not change. */
STEEP_API steep_code steep_map_arrays(const char* path, steep_tensors** arrays,
                                      steep_error** error);

/* Mini-batches over arrays with the same first extent, without a copy of them. `options`, of
 * STEEP_OPTIONS_BATCHES, may be NULL. `rows`: the `row_count` rows to use; NULL and 0: all. The
 * order of an epoch depends on the seed and the epoch alone. Batches (steep/data.h). */
STEEP_API steep_code steep_batches_new(const steep_tensors* arrays, const steep_options* options,
                                       const int64_t* rows, size_t row_count,
                                       steep_batches** batches, steep_error** error);
STEEP_API steep_code steep_batches_free(steep_batches* batches);
/* The number of batches in an epoch; the number of rows. */
STEEP_API steep_code steep_batches_count(const steep_batches* batches, int64_t* count,
                                         steep_error** error);
STEEP_API steep_code steep_batches_row_count(const steep_batches* batches, int64_t* rows,
                                             steep_error** error);
/* One array for each of `arrays`, of the same name. STEEP_ERROR_DATA unless `batch` is below the
 * count and both numbers are at least 0. */
STEEP_API steep_code steep_batches_get(steep_batches* batches, int64_t epoch, int64_t batch,
                                       steep_tensors** arrays, steep_error** error);

/* --- your own providers, operators and optimizers --------------------------------------------- */

/* Loads a plug-in (steep/provider.h) for the rest of the process. This runs its code: load only
 * plug-ins that you trust. `name` receives the name of the provider and may be NULL. */
STEEP_API steep_code steep_register_provider(const char* library, steep_bytes** name,
                                             steep_error** error);
/* The names of the providers that have a device on this machine. */
STEEP_API steep_code steep_available_providers(steep_strings** names, steep_error** error);
/* Registers the functions of a model file (steep/ops.h). `names` receives their names and may be
 * NULL. */
STEEP_API steep_code steep_register_ops(const char* path, steep_strings** names,
                                        steep_error** error);
/* STEEP_ERROR_DATA if there is no operator of that name. */
STEEP_API steep_code steep_unregister_op(const char* name, steep_error** error);
STEEP_API steep_code steep_registered_ops(steep_strings** names, steep_error** error);

#ifdef __cplusplus
} /* extern "C" */
#endif
