/* Training without ONNX, from C: artifacts (docs/runtime.md). The rules for errors, handles, arrays
 * and threads are those of steep_c.h. The header is C99, and C++ may include it. */
#pragma once

#include "steep_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes an artifact: a file with a model's differentiated graph, weights and optimizer
 * (steep/artifact.h, docs/runtime.md). `inputs` are `count` arrays as steep_training_step() takes
 * them, for `batches` batches one after the other, the same number for each. For each batch the
 * file has a step and a prediction of its shapes, or only a prediction if the label is left out.
 * STEEP_ERROR_MODEL if an artifact cannot hold what the session does, SHAPE, DATA, IO.
 *
 * Only the whole library has this function. The runtime, the library that is built with
 * STEEP_RUNTIME, has the functions below and, of steep_c.h, the sections "the library", "errors"
 * and "results". */
STEEP_API steep_code steep_training_save_artifact(const steep_training* session, const char* path,
                                                  const steep_array* inputs, size_t count,
                                                  size_t batches, steep_error** error);

typedef struct steep_artifact steep_artifact; /* a session that reads such a file */

/* `max_bytes` bounds the file and each run; 0: the default of steep/limits.h. Files from untrusted
 * sources are safe to open. STEEP_ERROR_CHECKPOINT if the file is damaged, has another version or
 * is not an artifact, MODEL if it has operators or types that artifacts may not hold,
 * OUT_OF_MEMORY, IO. */
STEEP_API steep_code steep_artifact_open(const char* path, uint64_t max_bytes,
                                         steep_artifact** session, steep_error** error);
/* From bytes, which are copied. */
STEEP_API steep_code steep_artifact_open_bytes(const void* artifact, size_t size,
                                               uint64_t max_bytes, steep_artifact** session,
                                               steep_error** error);
STEEP_API steep_code steep_artifact_free(steep_artifact* session);

/* As steep_training_step(), for arrays of exactly the dtypes and shapes of a batch that the
 * artifact was written for; otherwise STEEP_ERROR_SHAPE. PROVIDER names nodes that have no kernel
 * in this library. */
STEEP_API steep_code steep_artifact_step(steep_artifact* session, const steep_array* inputs,
                                         size_t count, steep_step* step, steep_tensors** outputs,
                                         steep_error** error);
/* Computes the model's outputs, from inputs without a label. */
STEEP_API steep_code steep_artifact_predict(steep_artifact* session, const steep_array* inputs,
                                            size_t count, steep_tensors** outputs,
                                            steep_error** error);

/* The inputs of a step; the inputs of a prediction; its outputs. Extents that differ between the
 * artifact's batches are -1. */
STEEP_API steep_code steep_artifact_inputs(const steep_artifact* session,
                                           const steep_value** inputs, size_t* count,
                                           steep_error** error);
STEEP_API steep_code steep_artifact_prediction_inputs(const steep_artifact* session,
                                                      const steep_value** inputs, size_t* count,
                                                      steep_error** error);
STEEP_API steep_code steep_artifact_outputs(const steep_artifact* session,
                                            const steep_value** outputs, size_t* count,
                                            steep_error** error);
STEEP_API steep_code steep_artifact_parameters(const steep_artifact* session,
                                               const char* const** names, size_t* count,
                                               steep_error** error);

/* Copies the named parameters, or all of them if `names` is NULL. */
STEEP_API steep_code steep_artifact_weights(const steep_artifact* session, const char* const* names,
                                            size_t count, steep_tensors** weights,
                                            steep_error** error);
/* Overwrites parameters and running statistics. STEEP_ERROR_MODEL for an unknown name,
 * SHAPE for another dtype or shape; then nothing has changed. */
STEEP_API steep_code steep_artifact_set_weights(steep_artifact* session, const steep_array* weights,
                                                size_t count, steep_error** error);

STEEP_API steep_code steep_artifact_step_count(const steep_artifact* session, int64_t* count,
                                               steep_error** error);
/* The learning rate of the next step; setting it sets the base rate, before the schedule's
 * factor. */
STEEP_API steep_code steep_artifact_lr(const steep_artifact* session, double* lr,
                                       steep_error** error);
STEEP_API steep_code steep_artifact_set_lr(steep_artifact* session, double lr, steep_error** error);

/* Writes an artifact of the current state, from which training can continue. It replaces a file at
 * `path` only when the new one is complete and on disk. */
STEEP_API steep_code steep_artifact_save(const steep_artifact* session, const char* path,
                                         steep_error** error);

#ifdef __cplusplus
} /* extern "C" */
#endif
