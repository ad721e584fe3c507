/* Trains a small classifier and keeps it: train MODEL CHECKPOINT TRAINED
 *
 * MODEL has an input `x` float32[rows, 64] and an output `logits` [rows, 10]. The data are made
 * here: each digit is a pattern of 64 numbers, with noise. */
#include <math.h>
#include <steep_c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 128, FEATURES = 64, CLASSES = 10, STEPS = 60 };

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

static double noise(void) { return (double)rand() / RAND_MAX - 0.5; }

/* `x` [ROWS, FEATURES] and `label` [ROWS]. */
static void make_batch(float* x, int64_t* label) {
  for (int row = 0; row < ROWS; ++row) {
    label[row] = rand() % CLASSES;
    for (int i = 0; i < FEATURES; ++i) {
      const double pattern = (i + 1) * (int)(label[row] + 1) % 11 / 5.0 - 1;
      x[row * FEATURES + i] = (float)(pattern + noise());
    }
  }
}

static steep_training* open(const char* model) {
  steep_options* options = NULL;
  steep_options* biases = NULL;
  steep_training* session = NULL;
  const char* const names[] = {"fc0.bias", "fc1.bias"};
  check(steep_options_new(STEEP_OPTIONS_TRAINING, &options, &error));
  check(steep_options_set_string(options, "loss", "softmax_cross_entropy", &error));
  check(steep_options_set_string(options, "optimizer", "adamw", &error));
  check(steep_options_set_number(options, "lr", 0.01, &error));
  check(steep_options_set_number(options, "weight_decay", 0.01, &error));
  check(steep_options_set_integer(options, "grad_norm", 1, &error));
  check(steep_options_add(options, "step_outputs", "logits", &error));
  check(steep_options_new(STEEP_OPTIONS_GROUP, &biases, &error));
  check(steep_options_set_number(biases, "weight_decay", 0, &error));
  check(steep_options_add_group(options, names, 2, biases, &error));
  check(steep_training_open(model, options, &session, &error));
  check(steep_options_free(biases));
  check(steep_options_free(options)); /* the session has what it needs */
  return session;
}

/* What the session says of itself. */
static void look(const steep_training* session) {
  const steep_value* values = NULL;
  const char* const* names = NULL;
  const char* const* reasons = NULL;
  size_t count = 0;
  check(steep_training_inputs(session, &values, &count, &error));
  expect(count == 2 && strcmp(values[0].name, "x") == 0, "inputs are x and label");
  expect(strcmp(values[1].name, "label") == 0, "inputs are x and label");
  expect(values[0].dtype == STEEP_DTYPE_FLOAT32 && values[0].rank == 2, "x is float32[rows, 64]");
  expect(values[0].dims[0] == -1 && values[0].dims[1] == FEATURES, "x is float32[rows, 64]");
  expect(strcmp(values[0].symbols[0], "rows") == 0, "x is float32[rows, 64]");
  expect(strcmp(values[0].symbols[1], "") == 0, "x is float32[rows, 64]");
  check(steep_training_outputs(session, &values, &count, &error));
  expect(count == 1 && strcmp(values[0].name, "logits") == 0, "the output is logits");
  check(steep_training_parameters(session, &names, &count, &error));
  expect(count == 4 && strcmp(names[0], "fc0.weight") == 0, "four parameters");
  check(steep_training_state_names(session, &names, &count, &error));
  expect(count == 8, "two moments for each");
  check(steep_training_left_out(session, &names, &reasons, &count, &error));
  expect(count == 0, "nothing is left out");
  check(steep_training_warnings(session, &names, &count, &error));
  expect(count == 0, "nothing to warn of");
}

/* The first number of a parameter. */
static float first(const steep_training* session, const char* name) {
  steep_tensors* weights = NULL;
  steep_array array;
  check(steep_training_weights(session, &name, 1, &weights, &error));
  check(steep_tensors_find(weights, name, &array, &error));
  expect(array.dtype == STEEP_DTYPE_FLOAT32 && array.bytes > 0, "a weight is float32");
  const float value = *(const float*)array.data;
  check(steep_tensors_free(weights));
  return value;
}

/* A copy, changed, set, and read again. */
static void exchange(steep_training* session) {
  float bias[CLASSES] = {7};
  const int64_t extent = CLASSES;
  steep_array array = {"fc1.bias", STEEP_DTYPE_FLOAT32, 1, &extent, bias, sizeof bias};
  check(steep_training_set_weights(session, &array, 1, &error));
  expect(first(session, "fc1.bias") == 7, "a weight that was set is read again");
  array.name = "fc9.bias";
  expect(steep_training_set_weights(session, &array, 1, &error) == STEEP_ERROR_MODEL, "no fc9");
  expect(strcmp(steep_error_node(error), "fc9.bias") == 0, "the error names fc9.bias");
  steep_error_free(error);
}

/* Arrays that cannot be: the error names them. */
static void refuse(steep_training* session) {
  const unsigned char bytes[] = {0, 2};
  const int64_t extent = 2, negative = -1;
  const steep_array bools = {"x", STEEP_DTYPE_BOOL, 1, &extent, bytes, sizeof bytes};
  expect(steep_training_step(session, &bools, 1, NULL, NULL, &error) == STEEP_ERROR_ARGUMENT,
         "2 is no bool");
  expect(strcmp(steep_error_received(error), "2 at element 1") == 0, "the error names the 2");
  steep_error_free(error);
  const steep_array less = {"x", STEEP_DTYPE_FLOAT32, 1, &negative, bytes, sizeof bytes};
  expect(steep_training_step(session, &less, 1, NULL, NULL, &error) == STEEP_ERROR_SHAPE,
         "no extent is negative");
  expect(strcmp(steep_error_node(error), "x") == 0, "the error names x");
  steep_error_free(error);
  const char* const name = "fc1.bais";
  steep_tensors* none = NULL;
  expect(steep_training_weights(session, &name, 1, &none, &error) == STEEP_ERROR_MODEL, "no bais");
  expect(strstr(steep_error_expected(error), "fc1.bias") != NULL, "the error names those there are");
  steep_error_free(error);
}

int main(int argc, char** argv) {
  static float x[ROWS * FEATURES];
  static int64_t label[ROWS];
  if (argc != 4) return 2;
  const int64_t x_dims[] = {ROWS, FEATURES};
  const int64_t label_dims[] = {ROWS};
  const steep_array batch[] = {{"x", STEEP_DTYPE_FLOAT32, 2, x_dims, x, sizeof x},
                               {"label", STEEP_DTYPE_INT64, 1, label_dims, label, sizeof label}};
  steep_training* session = open(argv[1]);
  look(session);
  refuse(session);

  double begin = 0;
  steep_step step;
  for (int i = 0; i < STEPS; ++i) {
    steep_tensors* outputs = NULL;
    steep_array logits;
    make_batch(x, label);
    check(steep_training_step(session, batch, 2, &step, &outputs, &error));
    check(steep_tensors_get(outputs, 0, &logits, &error));
    expect(logits.dims[0] == ROWS && logits.dims[1] == CLASSES, "logits are [rows, 10]");
    steep_tensors_free(outputs);
    expect(step.step == i + 1 && step.grad_norm > 0 && !step.skipped, "a step is a step");
    if (i == 0) begin = step.loss;
    if (i % 10 == 9) printf("step %d  loss %.4f\n", i + 1, step.loss);
  }
  expect(step.loss < begin / 4, "the loss falls");

  /* A checkpoint brings the weights back. */
  const float trained = first(session, "fc1.bias");
  check(steep_training_save_checkpoint(session, argv[2], "{\"epoch\":3}", &error));
  exchange(session);
  steep_bytes* user = NULL;
  check(steep_training_load_checkpoint(session, argv[2], &user, &error));
  expect(strcmp(steep_bytes_data(user), "{\"epoch\":3}") == 0, "the user's text comes back");
  steep_bytes_free(user);
  expect(first(session, "fc1.bias") == trained, "the weight comes back");

  steep_evaluation evaluation;
  make_batch(x, label);
  check(steep_training_eval(session, batch, 2, &evaluation, NULL, &error));
  expect(evaluation.has_loss && evaluation.loss < begin / 4, "it knows new data");
  check(steep_training_eval(session, batch, 1, &evaluation, NULL, &error));
  expect(!evaluation.has_loss && isnan(evaluation.loss), "no label, no loss");

  double lr = 0;
  check(steep_training_set_lr(session, 0.5, &error));
  check(steep_training_lr(session, &lr, &error));
  expect(lr == 0.5, "the learning rate that was set");
  steep_tensors* gradients = NULL;
  double loss = 0;
  check(steep_training_gradients(session, batch, 2, &loss, &gradients, &error));
  expect(steep_tensors_count(gradients) == 4 && loss < begin, "a gradient for each parameter");
  steep_tensors_free(gradients);

  steep_plan plan;
  check(steep_training_plan(session, batch, 2, &plan, &error));
  expect(plan.parameter_bytes > 0 && plan.kernels > 0, "a plan has kernels");
  check(steep_training_export(session, argv[3], NULL, &error));
  check(steep_training_free(session));
  expect(steep_training_free(session) == STEEP_ERROR_ARGUMENT, "freeing twice is an error");
  printf("trained: %.4f to %.4f\n", begin, step.loss);
  return 0;
}
