/* The functions of the C API that train in several processes. steep_c.h includes this header, and
 * has the rules for errors, handles and arrays. docs/parallel.md explains launchers, and what the
 * processes exchange.
 *
 *   steep_peers_connect("gloo", &peers, &error);             every process opens the same model,
 *   steep_parallel_new(session, peers, NULL, &all, &error);  with the same options
 *   steep_parallel_step(all, rows_of_this_process, 2, &step, NULL, &error);
 *
 * All processes make the calls that exchange something in the same order: those of both handles
 * here, but for the ones that say "of this process". The others wait for one that does not.
 * STEEP_ERROR_PEER_LOST says that a process has ended or does not answer; from then on each of
 * these calls returns it. STEEP_ERROR_PROVIDER: a process is at another call, or this process was
 * forked from the one that connected. A call while another one with the same peers runs, in another
 * thread or around an interrupt check, is STEEP_ERROR_ARGUMENT. */
#pragma once

#include "steep_c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct steep_peers steep_peers;       /* the processes of a training */
typedef struct steep_parallel steep_parallel; /* this process's part of a training */

/* --- processes -------------------------------------------------------------------------------- */

/* Connects to the processes that a launcher has started together with this one. `way`: "gloo",
 * those of `steep launch -n 2 -- PROGRAM`; "mpi", those of Open MPI's mpirun, possible once in the
 * life of a process. STEEP_ERROR_PROVIDER: another way; a plug-in that is not installed; no
 * launcher; processes that cannot be reached. */
STEEP_API steep_code steep_peers_connect(const char* way, steep_peers** peers, steep_error** error);
STEEP_API steep_code steep_peers_free(steep_peers* peers);

/* Of this process: its number, from 0, and how many there are. Both may be NULL. */
STEEP_API steep_code steep_peers_place(const steep_peers* peers, int32_t* rank, int32_t* size,
                                       steep_error** error);
/* Of this process: the bytes that it has sent so far, protocol included. STEEP_ERROR_PROVIDER where
 * nobody counts them, as with "mpi". */
STEEP_API steep_code steep_peers_sent_bytes(const steep_peers* peers, uint64_t* bytes,
                                            steep_error** error);

/* The arrays of all processes, in the order of ranks; their names are empty. This and the next
 * functions take arrays of the same types in all processes; if they differ, all return
 * STEEP_ERROR_SHAPE. Any other error in the arguments of one process is one of all, too, unless its
 * handle is wrong. */
STEEP_API steep_code steep_peers_gather(steep_peers* peers, const steep_array* array,
                                        steep_tensors** every, steep_error** error);
/* The texts of all processes, of any length, in the order of ranks. */
STEEP_API steep_code steep_peers_gather_text(steep_peers* peers, const char* text,
                                             steep_strings** every, steep_error** error);
/* Writes to each array (float32, float64) the sum over all processes of array times `factor`, which
 * may differ between them. `wire_precision`: "float32" or NULL, or "bfloat16": float32 numbers
 * are sent in half the bytes; the result differs from the sum by at most 2^-7 times the sum of the
 * magnitudes. */
STEEP_API steep_code steep_peers_add(steep_peers* peers, const steep_array* arrays, size_t count,
                                     double factor, const char* wire_precision,
                                     steep_error** error);
/* Writes to each array what it is in the process `rank`. */
STEEP_API steep_code steep_peers_copy_from(steep_peers* peers, int32_t rank,
                                           const steep_array* arrays, size_t count,
                                           steep_error** error);

/* The hash of a file as a text, for steep_options_add_fact(). */
STEEP_API steep_code steep_file_hash(const char* path, steep_bytes** hash, steep_error** error);

/* --- training --------------------------------------------------------------------------------- */

/* Trains `session` together with the sessions of all other processes (DataParallel in
 * steep/parallel.h). All compare their models, options and facts in the first step:
 * STEEP_ERROR_MODEL names the rank and what differs. `options` (STEEP_OPTIONS_PARALLEL) may be
 * NULL. Their keys: `zero`: 1: each process keeps the optimizer's states of its share of the
 * parameters; 2: and the sums of the gradients of that share; `wire_precision`: see
 * steep_peers_add(). The result keeps the session and the peers: both handles may be freed before
 * it. While one of its calls runs, no other call may use the session. */
STEEP_API steep_code steep_parallel_new(steep_training* session, steep_peers* peers,
                                        const steep_options* options, steep_parallel** parallel,
                                        steep_error** error);
STEEP_API steep_code steep_parallel_free(steep_parallel* parallel);

/* As steep_training_step(), with the rows of all processes: the update is that of their mean
 * gradient. A process without rows passes 0 inputs, or inputs of 0 rows. `outputs` are those of the
 * rows of this process. An error of one process, in its inputs too, is one of all, before any
 * weight changes; that of the others names the rank. STEEP_ERROR_DATA if no process has rows, or
 * labels that count. */
STEEP_API steep_code steep_parallel_step(steep_parallel* parallel, const steep_array* inputs,
                                         size_t count, steep_step* step, steep_tensors** outputs,
                                         steep_error** error);
/* The same, but if no process has rows or labels that count, *updated is 0 and no other result is
 * written; otherwise it is 1. */
STEEP_API steep_code steep_parallel_step_if_any(steep_parallel* parallel, const steep_array* inputs,
                                                size_t count, int32_t* updated, steep_step* step,
                                                steep_tensors** outputs, steep_error** error);
/* As steep_training_accumulate(), for the rows of this process. `rows`: the rows of all processes
 * in this part: then all parts have the same weight, as in one process; 0: each part weighs as many
 * as this process's rows. With `zero` 2 all processes call it equally often, and an error is one of
 * all; otherwise both are of this process. */
STEEP_API steep_code steep_parallel_accumulate(steep_parallel* parallel, const steep_array* inputs,
                                               size_t count, int64_t rows, steep_step* step,
                                               steep_tensors** outputs, steep_error** error);
/* As steep_training_apply_gradients(), with the parts of all processes. The second writes *updated
 * as steep_parallel_step_if_any(). */
STEEP_API steep_code steep_parallel_apply_gradients(steep_parallel* parallel, steep_step* step,
                                                    steep_error** error);
STEEP_API steep_code steep_parallel_apply_if_any(steep_parallel* parallel, int32_t* updated,
                                                 steep_step* step, steep_error** error);
/* Of this process: the number of parts that wait, those without rows included. */
STEEP_API steep_code steep_parallel_accumulated(const steep_parallel* parallel, int64_t* parts,
                                                steep_error** error);
/* Discards the parts. All processes call it, though nothing is exchanged. */
STEEP_API steep_code steep_parallel_drop_gradients(steep_parallel* parallel, steep_error** error);
/* This process has failed outside of these calls, as in reading its rows. `code`: a steep_code but
 * STEEP_OK; `what`: a sentence. Discards the parts that wait. The step in which the others are, or
 * their next one, returns `code` (STEEP_ERROR_PROVIDER for STEEP_ERROR_ARGUMENT and _PEER_LOST),
 * and the error names this rank. */
STEEP_API steep_code steep_parallel_fail(steep_parallel* parallel, int32_t code, const char* what,
                                         steep_error** error);

/* The state of the session has changed other than by these steps. The first: on this process; that
 * of rank 0 is copied to all before the next step, but not states that are divided. The second: all
 * processes have loaded the same checkpoint by steep_training_load_checkpoint(). The third: states
 * were set, from what `text` identifies; where it differs between processes whose states are
 * divided, the next step is STEEP_ERROR_DATA. */
STEEP_API steep_code steep_parallel_refresh(steep_parallel* parallel, steep_error** error);
STEEP_API steep_code steep_parallel_loaded(steep_parallel* parallel, steep_error** error);
STEEP_API steep_code steep_parallel_set_loaded(steep_parallel* parallel, const char* text,
                                               steep_error** error);
/* As steep_training_save_checkpoint(). Rank 0 writes it; with `zero`, each process writes the
 * states that it keeps to a folder that all must see, unless `full` is 1: rank 0 then collects
 * them. Any number of processes can load it. */
STEEP_API steep_code steep_parallel_save_checkpoint(steep_parallel* parallel, const char* path,
                                                    const char* user, int32_t full,
                                                    steep_error** error);
/* As steep_training_optimizer_state(), of all names; with `zero`, rank 0 gets those of all
 * parameters, and the others those that they keep. */
STEEP_API steep_code steep_parallel_optimizer_state(steep_parallel* parallel, steep_tensors** state,
                                                    steep_error** error);
/* Of this process: a text on running statistics, which are those of rank 0; else empty. */
STEEP_API steep_code steep_parallel_warning(const steep_parallel* parallel, steep_bytes** text,
                                            steep_error** error);

#ifdef __cplusplus
} /* extern "C" */
#endif
