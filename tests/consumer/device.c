/* Trains from an artifact, as a device does: device ARTIFACT SAVED
 *
 * ARTIFACT is of a classifier with an input `x` float32[32, 64] and an output `logits` [32, 10]; it
 * links the runtime or the whole library alike. The data are made here: each digit is a pattern of
 * 64 numbers, with noise. */
#include <steep_artifact.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 32, FEATURES = 64, CLASSES = 10, STEPS = 100 };

static steep_error* error = NULL;

/* Ends the program unless a call succeeded. */
static void check(steep_code code) {
  if (code == STEEP_OK) return;
  fprintf(stderr, "%s: %s\n", steep_code_name(code), steep_error_message(error));
  steep_error_free(error);
  exit(2);
}

/* Ends the program unless something is so. */
static void expect(int so, const char* what) {
  if (so) return;
  fprintf(stderr, "not so: %s\n", what);
  exit(1);
}

static void make_batch(float* x, int64_t* label) {
  for (int row = 0; row < ROWS; ++row) {
    label[row] = rand() % CLASSES;
    for (int i = 0; i < FEATURES; ++i) {
      const double pattern = (i + 1) * (int)(label[row] + 1) % 11 / 5.0 - 1;
      x[row * FEATURES + i] = (float)(pattern + (double)rand() / RAND_MAX - 0.5);
    }
  }
}

/* Rows whose greatest score is that of their label. */
static int right(steep_artifact* session, const steep_array* x, const int64_t* label) {
  steep_tensors* outputs = NULL;
  steep_array logits;
  int count = 0;
  check(steep_artifact_predict(session, x, 1, &outputs, &error));
  check(steep_tensors_get(outputs, 0, &logits, &error));
  expect(logits.rank == 2 && logits.dims[0] == ROWS && logits.dims[1] == CLASSES, "logits");
  for (int row = 0; row < ROWS; ++row) {
    const float* scores = (const float*)logits.data + row * CLASSES;
    int best = 0;
    for (int i = 1; i < CLASSES; ++i) best = scores[i] > scores[best] ? i : best;
    count += best == label[row];
  }
  check(steep_tensors_free(outputs));
  return count;
}

/* A parameter, changed, and put back. */
static void exchange(steep_artifact* session) {
  const char* const* names = NULL;
  size_t count = 0;
  steep_tensors *before = NULL, *now = NULL;
  steep_array array, read;
  check(steep_artifact_parameters(session, &names, &count, &error));
  expect(count > 0, "there are parameters");
  check(steep_artifact_weights(session, names, 1, &before, &error));
  check(steep_tensors_get(before, 0, &array, &error));
  expect(array.dtype == STEEP_DTYPE_FLOAT32 && array.bytes > 0, "a weight is float32");
  float* changed = calloc(1, array.bytes);
  expect(changed != NULL, "memory");
  changed[0] = 7;
  steep_array given = array;
  given.data = changed;
  check(steep_artifact_set_weights(session, &given, 1, &error));
  check(steep_artifact_weights(session, names, 1, &now, &error));
  check(steep_tensors_get(now, 0, &read, &error));
  expect(memcmp(read.data, changed, read.bytes) == 0, "a weight that was set is read again");
  check(steep_artifact_set_weights(session, &array, 1, &error));
  free(changed);
  check(steep_tensors_free(now));
  check(steep_tensors_free(before));
}

/* The most of memory that this process had, in KiB; 0 where the system does not say. */
static long peak_kib(void) {
  FILE* status = fopen("/proc/self/status", "r");
  char line[256];
  long kib = 0;
  while (status != NULL && fgets(line, sizeof line, status) != NULL) {
    if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
  }
  if (status != NULL) fclose(status);
  return kib;
}

int main(int argc, char** argv) {
  static float x[ROWS * FEATURES];
  static int64_t label[ROWS];
  if (argc != 3) return 2;
  const int64_t x_dims[] = {ROWS, FEATURES};
  const int64_t label_dims[] = {ROWS};
  const steep_array batch[] = {{"x", STEEP_DTYPE_FLOAT32, 2, x_dims, x, sizeof x},
                               {"label", STEEP_DTYPE_INT64, 1, label_dims, label, sizeof label}};
  steep_artifact* session = NULL;
  check(steep_artifact_open(argv[1], 0, &session, &error));
  steep_step step;
  double begin = 0;
  for (int i = 0; i < STEPS; ++i) {
    make_batch(x, label);
    check(steep_artifact_step(session, batch, 2, &step, NULL, &error));
    if (i == 0) begin = step.loss;
  }
  expect(step.loss < begin / 4, "the loss falls");
  make_batch(x, label);
  const int known = right(session, batch, label);
  expect(known > ROWS * 9 / 10, "it knows new data");
  exchange(session);

  /* What is wrong is an error, and nothing changes. */
  label[3] = CLASSES;
  expect(steep_artifact_step(session, batch, 2, NULL, NULL, &error) == STEEP_ERROR_DATA, "label");
  steep_error_free(error);
  label[3] = 0;
  expect(steep_artifact_step(session, batch, 1, NULL, NULL, &error) != STEEP_OK, "no label");
  steep_error_free(error);

  /* It goes on from what it saved. */
  steep_artifact* again = NULL;
  steep_step after;
  int64_t steps = 0;
  check(steep_artifact_save(session, argv[2], &error));
  check(steep_artifact_open(argv[2], 0, &again, &error));
  check(steep_artifact_step_count(again, &steps, &error));
  expect(steps == STEPS, "the count of steps is saved");
  make_batch(x, label);
  check(steep_artifact_step(session, batch, 2, &step, NULL, &error));
  check(steep_artifact_step(again, batch, 2, &after, NULL, &error));
  expect(step.loss == after.loss && step.step == after.step, "the next step is the same");
  check(steep_artifact_free(again));
  check(steep_artifact_free(session));
  expect(steep_artifact_free(session) == STEEP_ERROR_ARGUMENT, "freeing twice is an error");
  expect(steep_artifact_open_bytes(argv[0], strlen(argv[0]), 0, &session, &error) ==
             STEEP_ERROR_CHECKPOINT,
         "what is no artifact is refused");
  steep_error_free(error);
  printf("trained: %.4f to %.4f, %d of %d right, peak %ld KiB\n", begin, step.loss, known, ROWS,
         peak_kib());
  return 0;
}
