/* Training without ONNX, from C: artifacts (docs/runtime.md). The rules for errors, handles, arrays
 * and threads are those of steep_c.h. C99; from C++ it is the same. */
#pragma once

#include "steep_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A file that carries a model's differentiated graph, weights and optimizer (steep/artifact.h,
 * docs/runtime.md). The whole library writes it. `inputs` are arrays as steep_training_step() takes
 * them, those of `batches` batches one after the other: `count` in all, as many for each. For each
 * batch the file has a step and a prediction of those shapes, or only a prediction where the label
 * is left out. STEEP_ERROR_MODEL for what an artifact cannot hold, SHAPE, DATA, IO.
 *
 * The functions below are also those of the runtime, the library that is built with STEEP_RUNTIME.
 * Of steep_c.h it has the sections "the library", "errors" and "results". */
STEEP_API steep_code steep_training_save_artifact(const steep_training* session, const char* path,
                                                  const steep_array* inputs, size_t count,
                                                  size_t batches, steep_error** error);

typedef struct steep_artifact steep_artifact; /* a session of such a file */

/* `max_bytes` bounds the file and each run; 0: the default of steep/limits.h. The file need not be
 * trusted. STEEP_ERROR_CHECKPOINT for one that is damaged, of another version or no artifact, MODEL
 * for one with operators or types that artifacts may not hold, OUT_OF_MEMORY, IO. */
STEEP_API steep_code steep_artifact_open(const char* path, uint64_t max_bytes,
                                         steep_artifact** session, steep_error** error);
/* From bytes, which are copied. */
STEEP_API steep_code steep_artifact_open_bytes(const void* artifact, size_t size,
                                               uint64_t max_bytes, steep_artifact** session,
                                               steep_error** error);
STEEP_API steep_code steep_artifact_free(steep_artifact* session);

/* As steep_training_step(), for arrays of exactly the dtypes and shapes of a batch that the
 * artifact was written for; others are STEEP_ERROR_SHAPE. PROVIDER names the nodes that this
 * library has no kernel for. */
STEEP_API steep_code steep_artifact_step(steep_artifact* session, const steep_array* inputs,
                                         size_t count, steep_step* step, steep_tensors** outputs,
                                         steep_error** error);
/* The model's outputs, without a label. */
STEEP_API steep_code steep_artifact_predict(steep_artifact* session, const steep_array* inputs,
                                            size_t count, steep_tensors** outputs,
                                            steep_error** error);

/* Of a step, of a prediction, and what the latter gives; extents in which batches differ are -1. */
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

/* Copies of the parameters named, or of all where `names` is NULL. */
STEEP_API steep_code steep_artifact_weights(const steep_artifact* session, const char* const* names,
                                            size_t count, steep_tensors** weights,
                                            steep_error** error);
/* Overwrites parameters and running statistics. STEEP_ERROR_MODEL for a name that is not there,
 * SHAPE for another type; nothing changes then. */
STEEP_API steep_code steep_artifact_set_weights(steep_artifact* session, const steep_array* weights,
                                                size_t count, steep_error** error);

STEEP_API steep_code steep_artifact_step_count(const steep_artifact* session, int64_t* count,
                                               steep_error** error);
/* The rate of the next step; the base rate, which the schedule multiplies. */
STEEP_API steep_code steep_artifact_lr(const steep_artifact* session, double* lr,
                                       steep_error** error);
STEEP_API steep_code steep_artifact_set_lr(steep_artifact* session, double lr, steep_error** error);

/* An artifact of all as it is now, from which training goes on. Replaces what is at `path` when it
 * is complete and on disk. */
STEEP_API steep_code steep_artifact_save(const steep_artifact* session, const char* path,
                                         steep_error** error);

#ifdef __cplusplus
} /* extern "C" */
#endif
