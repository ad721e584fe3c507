/* Training in several processes from C. Each trains on its rows; one session has all rows, and must
 * get the same weights.
 *   steep launch -n 2 -- ranks model.onnx FOLDER ZERO
 * model.onnx is that of train.c. FOLDER is seen by all processes. ZERO is 0, 1 or 2. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <steep_c.h>
#include <string.h>

enum { ROWS = 12, FEATURES = 64, CLASSES = 10, STEPS = 6 };

static steep_error* error;
static int32_t rank, size;
static float x[ROWS * FEATURES];
static int64_t labels[ROWS];

static void check(steep_code code) {
  if (code == STEEP_OK) return;
  fprintf(stderr, "rank %d: %s: %s\n", rank, steep_code_name(code), steep_error_message(error));
  exit(1);
}

static void expect(int is, const char* what) {
  if (is) return;
  fprintf(stderr, "rank %d: not so: %s\n", rank, what);
  exit(1);
}

/* The call must fail with this code, and say so with this text. */
static void refused(steep_code code, steep_code wanted, const char* text) {
  if (code != wanted || strstr(steep_error_message(error), text) == NULL) {
    fprintf(stderr, "rank %d: %s: %s\n", rank, steep_code_name(code), steep_error_message(error));
  }
  expect(code == wanted && strstr(steep_error_message(error), text) != NULL, text);
  steep_error_free(error);
}

/* `rows` rows from `first`, as the inputs of a step. */
static const steep_array* rows_of(int64_t first, int64_t rows) {
  static int64_t extents[2];
  static steep_array batch[2];
  extents[0] = rows;
  extents[1] = FEATURES;
  batch[0] = (steep_array){"x", STEEP_DTYPE_FLOAT32, 2, extents, x + first * FEATURES,
                           (size_t)(rows * FEATURES) * sizeof(float)};
  batch[1] = (steep_array){"label", STEEP_DTYPE_INT64, 1, extents, labels + first,
                           (size_t)rows * sizeof(int64_t)};
  return batch;
}

static steep_training* open_session(const char* model) {
  steep_options* options = NULL;
  steep_training* session = NULL;
  check(steep_options_new(STEEP_OPTIONS_TRAINING, &options, &error));
  check(steep_options_set_string(options, "loss", "softmax_cross_entropy", &error));
  check(steep_options_set_string(options, "optimizer", "adam", &error));
  check(steep_options_set_number(options, "lr", 0.01, &error));
  check(steep_options_set_number(options, "clip_norm", 1.0, &error));
  check(steep_training_open(model, options, &session, &error));
  check(steep_options_free(options));
  return session;
}

static steep_parallel* join(steep_training* session, steep_peers* peers, int zero,
                            const char* fact) {
  steep_options* options = NULL;
  steep_parallel* all = NULL;
  check(steep_options_new(STEEP_OPTIONS_PARALLEL, &options, &error));
  check(steep_options_set_integer(options, "zero", zero, &error));
  check(steep_options_add_fact(options, "data", fact, &error));
  check(steep_parallel_new(session, peers, options, &all, &error));
  check(steep_options_free(options));
  return all;
}

static void exchange(steep_peers* peers) {
  const int64_t extents[1] = {3};
  const double mine = rank + 0.5;
  float sums[3] = {1, 2, (float)rank};
  int32_t from[3] = {rank, 7, 8 * rank};
  const steep_array one = {NULL, STEEP_DTYPE_FLOAT64, 0, NULL, &mine, sizeof mine};
  const steep_array summed = {NULL, STEEP_DTYPE_FLOAT32, 1, extents, sums, sizeof sums};
  const steep_array copied = {NULL, STEEP_DTYPE_INT32, 1, extents, from, sizeof from};
  steep_tensors* every = NULL;
  steep_strings* texts = NULL;
  steep_array array;
  uint64_t bytes = 0;
  char name[16];

  check(steep_peers_gather(peers, &one, &every, &error));
  expect(steep_tensors_count(every) == (size_t)size, "one array a process");
  for (int32_t i = 0; i < size; ++i) {
    check(steep_tensors_get(every, (size_t)i, &array, &error));
    expect(*(const double*)array.data == i + 0.5, "the number of each process");
  }
  check(steep_tensors_free(every));

  snprintf(name, sizeof name, "%*d", rank + 1, rank); /* of a length of its own */
  check(steep_peers_gather_text(peers, name, &texts, &error));
  expect(strcmp(steep_strings_get(texts, 1), " 1") == 0, "the text of rank 1");
  check(steep_strings_free(texts));

  check(steep_peers_add(peers, &summed, 1, 2.0, NULL, &error));
  expect(sums[0] == 2.0F * (float)size && sums[2] == (float)(size * (size - 1)), "sums");
  check(steep_peers_copy_from(peers, 1, &copied, 1, &error));
  expect(from[0] == 1 && from[2] == 8, "what rank 1 has");
  check(steep_peers_sent_bytes(peers, &bytes, &error));
  expect(bytes > 0, "bytes were sent");

  /* One process is wrong: all learn of it, and go on together. */
  refused(steep_peers_add(peers, rank == 0 ? &summed : &one, 1, 1.0, NULL, &error),
          STEEP_ERROR_SHAPE, "rank 1");
  refused(steep_peers_add(peers, rank == 1 ? &copied : &summed, 1, 1.0, NULL, &error),
          STEEP_ERROR_SHAPE, "float32");
  refused(rank == 0 ? steep_peers_add(peers, &summed, 1, 1.0, NULL, &error)
                    : steep_peers_copy_from(peers, 0, &summed, 1, &error),
          STEEP_ERROR_PROVIDER, "different calls");
  refused(steep_peers_copy_from(peers, size, &copied, 1, &error), STEEP_ERROR_ARGUMENT, "rank");
  refused(steep_peers_copy_from(peers, rank == 1 ? size : 0, &copied, 1, &error),
          rank == 1 ? STEEP_ERROR_ARGUMENT : STEEP_ERROR_PROVIDER, "rank");
  refused(steep_peers_add(peers, &summed, 1, 1.0, rank == 1 ? "float8" : NULL, &error),
          STEEP_ERROR_MODEL, "float8");
  refused(steep_peers_gather(peers, rank == 1 ? NULL : &one, &every, &error),
          rank == 1 ? STEEP_ERROR_ARGUMENT : STEEP_ERROR_PROVIDER, "NULL");
  refused(steep_peers_gather_text(peers, rank == 1 ? NULL : name, &texts, &error),
          rank == 1 ? STEEP_ERROR_ARGUMENT : STEEP_ERROR_PROVIDER, "NULL");
}

/* Steps of all kinds: in one part and in two, with a process that has no rows. */
static void train(steep_parallel* all, steep_training* whole) {
  steep_step step, expected;
  int32_t updated = -1;
  int64_t parts = -1;
  for (int i = 0; i < STEPS; ++i) {
    const int64_t first = i % 3 == 2 ? 0 : 4 + i; /* rows of rank 0; the others have the rest */
    const int64_t mine = rank == 0 ? first : ROWS - first;
    const int64_t begin = rank == 0 ? 0 : first;
    if (rank > 1) {
      check(steep_parallel_step(all, NULL, 0, &step, NULL, &error));
    } else if (i % 2 == 0) {
      check(steep_parallel_step(all, rows_of(begin, mine), mine == 0 ? 0 : 2, &step, NULL, &error));
    } else {
      check(steep_parallel_step_if_any(all, rows_of(begin, mine), 2, &updated, &step, NULL,
                                       &error));
      expect(updated == 1, "an update");
    }
    check(steep_training_step(whole, rows_of(0, ROWS), 2, &expected, NULL, &error));
    expect(fabs(step.loss - expected.loss) < 1e-5, "the loss of all rows");
  }
  for (int part = 0; part < 2; ++part) {
    const int64_t begin = rank == 0 ? part * 2 : 4 + part * 4;
    check(steep_parallel_accumulate(all, rows_of(begin, rank == 0 ? 2 : 4), rank > 1 ? 0 : 2, 0,
                                    &step, NULL, &error));
  }
  check(steep_parallel_accumulated(all, &parts, &error));
  expect(parts == 2, "two parts");
  refused(steep_parallel_step(all, rows_of(0, 1), 2, &step, NULL, &error), STEEP_ERROR_DATA,
          "apply_gradients");
  check(steep_parallel_apply_gradients(all, &step, &error));
  check(steep_training_step(whole, rows_of(0, ROWS), 2, &expected, NULL, &error));
  expect(fabs(step.loss - expected.loss) < 1e-5, "the loss of two parts");

  check(steep_parallel_step_if_any(all, NULL, 0, &updated, NULL, NULL, &error));
  expect(updated == 0, "no update without rows");
  check(steep_parallel_apply_if_any(all, &updated, NULL, &error));
  expect(updated == 0, "no update without parts");
  refused(steep_parallel_step(all, NULL, 0, &step, NULL, &error), STEEP_ERROR_DATA, "no rows");
}

/* An error of one process is one of all, and changes no weight. */
static void fail_together(steep_parallel* all) {
  steep_array wrong[2];
  int32_t updated = 0;
  memcpy(wrong, rows_of(0, 2), sizeof wrong);
  if (rank == 1) wrong[0].name = "y";
  refused(steep_parallel_step(all, wrong, 2, NULL, NULL, &error), STEEP_ERROR_DATA,
          rank == 1 ? "An input is missing" : "rank 1");
  refused(steep_parallel_step_if_any(all, rows_of(0, 2), 2, rank == 1 ? NULL : &updated, NULL, NULL,
                                     &error),
          rank == 1 ? STEEP_ERROR_ARGUMENT : STEEP_ERROR_PROVIDER, "NULL");
  if (rank == 1) {
    check(steep_parallel_fail(all, STEEP_ERROR_IO, "The disk is gone.", &error));
  } else {
    refused(steep_parallel_step(all, rows_of(0, 2), 2, NULL, NULL, &error), STEEP_ERROR_IO,
            "The disk is gone.");
  }
  if (rank == 1) {
    check(steep_parallel_fail(all, STEEP_ERROR_ARGUMENT, "A wrong handle.", &error));
  } else {
    refused(steep_parallel_step(all, rows_of(0, 2), 2, NULL, NULL, &error), STEEP_ERROR_PROVIDER,
            "A wrong handle.");
  }
  refused(steep_parallel_fail(all, STEEP_OK, "", &error), STEEP_ERROR_ARGUMENT, "code");
}

static void expect_same(steep_training* session, steep_training* other) {
  steep_tensors *ours = NULL, *theirs = NULL;
  steep_array a, b;
  check(steep_training_weights(session, NULL, 0, &ours, &error));
  check(steep_training_weights(other, NULL, 0, &theirs, &error));
  for (size_t i = 0; i < steep_tensors_count(ours); ++i) {
    check(steep_tensors_get(ours, i, &a, &error));
    check(steep_tensors_get(theirs, i, &b, &error));
    for (size_t k = 0; k < a.bytes / sizeof(float); ++k) {
      expect(fabsf(((const float*)a.data)[k] - ((const float*)b.data)[k]) < 2e-5F, a.name);
    }
  }
  check(steep_tensors_free(ours));
  check(steep_tensors_free(theirs));
}

static void save_and_load(steep_parallel* all, steep_training* session, const char* folder,
                          int zero) {
  char path[4096];
  steep_bytes* user = NULL;
  steep_tensors* state = NULL;
  snprintf(path, sizeof path, "%s/checkpoint_%d", folder, zero);
  check(steep_parallel_save_checkpoint(all, path, "{\"epoch\": 3}", 0, &error));
  check(steep_parallel_optimizer_state(all, &state, &error));
  expect(rank > 0 || steep_tensors_count(state) == 8, "moments of four parameters");
  check(steep_tensors_free(state));
  check(steep_parallel_step(all, rows_of(rank, 1), 2, NULL, NULL, &error));
  check(steep_training_load_checkpoint(session, path, &user, &error));
  expect(strcmp(steep_bytes_data(user), "{\"epoch\":3}") == 0, "what the user saved");
  check(steep_bytes_free(user));
  check(steep_parallel_loaded(all, &error));
}

int main(int count, char** words) {
  if (count != 4) return 2;
  const int zero = atoi(words[3]);
  for (int i = 0; i < ROWS * FEATURES; ++i) x[i] = sinf((float)(i * i % 1009));
  for (int i = 0; i < ROWS; ++i) labels[i] = i % CLASSES;

  steep_peers* peers = NULL;
  refused(steep_peers_connect("wire", &peers, &error), STEEP_ERROR_PROVIDER, "gloo or mpi");
  check(steep_peers_connect("gloo", &peers, &error));
  check(steep_peers_place(peers, &rank, &size, &error));
  exchange(peers);

  steep_bytes* text = NULL;
  check(steep_file_hash(words[1], &text, &error));
  steep_training *session = open_session(words[1]), *whole = open_session(words[1]);
  steep_parallel* all = join(session, peers, zero, steep_bytes_data(text));
  train(all, whole);
  fail_together(all);
  save_and_load(all, session, words[2], zero);
  expect_same(session, whole);
  check(steep_parallel_step(all, rows_of(rank * 4, 4), rank > 1 ? 0 : 2, NULL, NULL, &error));
  check(steep_training_step(whole, rows_of(0, 8), 2, NULL, NULL, &error));
  expect_same(session, whole);
  check(steep_bytes_free(text));
  check(steep_parallel_warning(all, &text, &error));
  expect(steep_bytes_data(text)[0] == '\0', "no running statistics");
  check(steep_bytes_free(text));
  check(steep_parallel_free(all));

  /* Other facts are found before the first step. */
  all = join(session, peers, 0, rank == 1 ? "other rows" : "rows");
  refused(steep_parallel_step(all, rows_of(0, 1), 2, NULL, NULL, &error), STEEP_ERROR_MODEL,
          "rank 1");
  check(steep_parallel_free(all));
  check(steep_peers_free(peers));
  check(steep_training_free(session));
  check(steep_training_free(whole));
  printf("rank %d of %d agrees\n", rank, size);
  return 0;
}
