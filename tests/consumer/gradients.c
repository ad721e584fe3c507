/* Forward and backward apart, and a step in parts:
 *   gradients model.onnx
 * The model is that of train.c. Both ways must give the gradients of one whole step. */
#include <math.h>
#include <steep_c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4, FEATURES = 64, CLASSES = 10 };

static steep_error* error;

static void check(steep_code code) {
  if (code == STEEP_OK) return;
  fprintf(stderr, "%s: %s\n", steep_code_name(code), steep_error_message(error));
  exit(1);
}

static void expect(int is, const char* what) {
  if (is) return;
  fprintf(stderr, "not so: %s\n", what);
  exit(1);
}

/* The bytes of one array of several, and how many floats these are. */
static const float* floats(const steep_tensors* tensors, const char* name, size_t* count) {
  steep_array array;
  check(steep_tensors_find(tensors, name, &array, &error));
  expect(array.dtype == STEEP_DTYPE_FLOAT32, "float32");
  *count = array.bytes / sizeof(float);
  return array.data;
}

static void expect_same(const steep_tensors* ours, const steep_tensors* theirs, const char* name) {
  size_t count = 0;
  size_t other = 0;
  const float* a = floats(ours, name, &count);
  const float* b = floats(theirs, name, &other);
  expect(count == other && count > 0, "as many numbers");
  double largest = 0;
  for (size_t i = 0; i < count; ++i) {
    expect(fabs(a[i] - b[i]) < 1e-5, name);
    if (fabs(b[i]) > largest) largest = fabs(b[i]);
  }
  expect(largest > 1e-3, "gradients are not zero");
}

static steep_training* open_training(const char* path) {
  steep_options* options = NULL;
  steep_training* session = NULL;
  check(steep_options_new(STEEP_OPTIONS_TRAINING, &options, &error));
  check(steep_options_set_string(options, "loss", "mse", &error));
  check(steep_options_set_string(options, "optimizer", "sgd", &error));
  check(steep_training_open(path, options, &session, &error));
  check(steep_options_free(options));
  return session;
}

/* The same step, whole and in two parts of half of the rows each. */
static void train_in_parts(const char* path, const steep_array* batch) {
  steep_training* whole = open_training(path);
  steep_training* parts = open_training(path);
  steep_step step;
  int64_t waiting = -1;
  check(steep_training_step(whole, batch, 2, NULL, NULL, &error));
  expect(steep_training_apply_gradients(parts, NULL, &error) == STEEP_ERROR_DATA, "no part yet");
  steep_error_free(error);
  for (int part = 0; part < 2; ++part) {
    steep_array half[2];
    int64_t dims[2][2];
    for (int i = 0; i < 2; ++i) {
      half[i] = batch[i];
      dims[i][0] = ROWS / 2;
      dims[i][1] = batch[i].dims[1];
      half[i].dims = dims[i];
      half[i].bytes = batch[i].bytes / 2;
      half[i].data = (const char*)batch[i].data + half[i].bytes * (size_t)part;
    }
    check(steep_training_accumulate(parts, half, 2, &step, NULL, &error));
    expect(step.step == 0, "a part is no step");
    check(steep_training_accumulated(parts, &waiting, &error));
    expect(waiting == part + 1, "parts wait");
    if (part == 0) { /* forgotten, and fed again */
      check(steep_training_drop_gradients(parts, &error));
      check(steep_training_accumulate(parts, half, 2, NULL, NULL, &error));
    }
  }
  check(steep_training_apply_gradients(parts, &step, &error));
  expect(step.step == 1, "one step");
  steep_tensors* ours = NULL;
  steep_tensors* theirs = NULL;
  check(steep_training_weights(parts, NULL, 0, &ours, &error));
  check(steep_training_weights(whole, NULL, 0, &theirs, &error));
  expect_same(ours, theirs, "fc0.weight");
  expect_same(ours, theirs, "fc1.bias");
  steep_tensors_free(ours);
  steep_tensors_free(theirs);
  check(steep_training_free(whole));
  check(steep_training_free(parts));
}

static steep_gradients* open_gradients(const char* path) {
  steep_options* options = NULL;
  steep_gradients* session = NULL;
  expect(steep_gradients_open(path, NULL, &session, &error) == STEEP_ERROR_MODEL, "wrt is needed");
  steep_error_free(error);
  check(steep_options_new(STEEP_OPTIONS_GRADIENTS, &options, &error));
  check(steep_options_add(options, "wrt", "x", &error));
  check(steep_options_add(options, "wrt", "fc0.weight", &error));
  check(steep_options_add(options, "wrt", "fc1.bias", &error));
  check(steep_gradients_open(path, options, &session, &error));
  check(steep_options_free(options));
  return session;
}

/* Of the same mean of squares, whose gradient is taken here. */
static void take_gradients(const char* path, const steep_array* batch) {
  steep_gradients* session = open_gradients(path);
  const steep_value* values = NULL;
  size_t count = 0;
  check(steep_gradients_inputs(session, &values, &count, &error));
  expect(count == 1 && strcmp(values[0].name, "x") == 0, "the input is x");
  check(steep_gradients_outputs(session, &values, &count, &error));
  expect(count == 1 && strcmp(values[0].name, "logits") == 0, "the output is logits");
  check(steep_gradients_weight_values(session, &values, &count, &error));
  expect(count == 2 && strcmp(values[1].name, "fc1.bias") == 0, "two weights");

  steep_tensors* outputs = NULL;
  steep_tensors* gradients = NULL;
  steep_run* run = NULL;
  check(steep_gradients_forward(session, batch, 1, &outputs, &run, &error));
  const float* logits = floats(outputs, "logits", &count);
  const float* label = batch[1].data;
  static float slope[ROWS * CLASSES];
  for (size_t i = 0; i < count; ++i) slope[i] = 2 * (logits[i] - label[i]) / (float)count;
  const int64_t dims[] = {ROWS, CLASSES};
  steep_array weight = {"none", STEEP_DTYPE_FLOAT32, 2, dims, slope, sizeof slope};
  expect(steep_gradients_backward(session, run, &weight, 1, &gradients, &error) == STEEP_ERROR_DATA,
         "no such output");
  steep_error_free(error);
  weight.name = "logits";
  check(steep_gradients_backward(session, run, &weight, 1, &gradients, &error));

  steep_training* training = open_training(path);
  steep_tensors* expected = NULL;
  check(steep_training_gradients(training, batch, 2, NULL, &expected, &error));
  expect_same(gradients, expected, "fc0.weight");
  expect_same(gradients, expected, "fc1.bias");
  check(steep_training_free(training));

  /* Once only, and of the session that it is of. */
  steep_tensors* again = NULL;
  expect(steep_gradients_backward(session, run, &weight, 1, &again, &error) == STEEP_ERROR_DATA,
         "its backward was done");
  steep_error_free(error);
  steep_gradients* other = open_gradients(path);
  steep_run* second = NULL;
  check(steep_gradients_forward(session, batch, 1, NULL, &second, &error));
  expect(steep_gradients_backward(other, second, &weight, 1, &again, &error) == STEEP_ERROR_DATA,
         "a run of another session");
  steep_error_free(error);
  check(steep_gradients_free(other));

  /* Weights that are set are read by the next run, and a run outlives its session. */
  steep_tensors* weights = NULL;
  static const float bias[CLASSES] = {100};
  const int64_t extent = CLASSES;
  const steep_array set = {"fc1.bias", STEEP_DTYPE_FLOAT32, 1, &extent, bias, sizeof bias};
  check(steep_gradients_set_weights(session, &set, 1, &error));
  check(steep_gradients_weights(session, &weights, &error));
  expect(floats(weights, "fc1.bias", &count)[0] == 100, "the weight that was set");
  check(steep_tensors_free(outputs));
  check(steep_gradients_eval(session, batch, 1, &outputs, &error));
  expect(floats(outputs, "logits", &count)[0] > 50, "it is read");
  check(steep_gradients_free(session));
  expect(steep_gradients_free(session) == STEEP_ERROR_ARGUMENT, "freeing twice is an error");
  check(steep_run_free(second));
  check(steep_run_free(run));
  steep_tensors_free(outputs);
  steep_tensors_free(gradients);
  steep_tensors_free(expected);
  steep_tensors_free(weights);
}

static steep_gradients* asking; /* a backward of this session runs */
static steep_run* running;
static int asked;

/* An interrupt check that calls backward of the run whose backward it interrupts. */
static int ask(void) {
  if (asking == NULL || asked) return 0;
  steep_tensors* none = NULL;
  asked = 1;
  expect(steep_gradients_backward(asking, running, NULL, 0, &none, NULL) == STEEP_ERROR_DATA,
         "a run has one backward");
  return 0;
}

static void interrupt_backward(const char* path, const steep_array* batch) {
  static float slope[ROWS * CLASSES];
  const int64_t dims[] = {ROWS, CLASSES};
  const steep_array dy = {"logits", STEEP_DTYPE_FLOAT32, 2, dims, slope, sizeof slope};
  steep_gradients* session = open_gradients(path);
  steep_set_interrupt_check(ask);
  while (!asked) { /* a check comes ten times a second */
    steep_tensors* gradients = NULL;
    check(steep_gradients_forward(session, batch, 1, NULL, &running, &error));
    asking = session;
    check(steep_gradients_backward(session, running, &dy, 1, &gradients, &error));
    asking = NULL;
    steep_tensors_free(gradients);
    steep_run_free(running);
  }
  steep_set_interrupt_check(NULL);
  check(steep_gradients_free(session));
}

int main(int argc, char** argv) {
  static float x[ROWS * FEATURES];
  static float label[ROWS * CLASSES];
  if (argc != 2) return 2;
  for (int i = 0; i < ROWS * FEATURES; ++i) x[i] = sinf((float)i);
  for (int i = 0; i < ROWS * CLASSES; ++i) label[i] = cosf((float)i);
  const int64_t x_dims[] = {ROWS, FEATURES};
  const int64_t label_dims[] = {ROWS, CLASSES};
  const steep_array batch[] = {{"x", STEEP_DTYPE_FLOAT32, 2, x_dims, x, sizeof x},
                               {"label", STEEP_DTYPE_FLOAT32, 2, label_dims, label, sizeof label}};
  train_in_parts(argv[1], batch);
  take_gradients(argv[1], batch);
  interrupt_backward(argv[1], batch);
  printf("gradients agree\n");
  return 0;
}
