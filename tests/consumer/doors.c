/* What the C API offers around a step: plans and reports, weights in the caller's memory, custom
 * losses, values of any kind, mini-batches.
 *   doors model.onnx loss.onnx values.onnx FOLDER
 * model.onnx is that of train.c. loss.onnx is a mean of squares. values.onnx takes a sequence s, a
 * tensor x and an optional o. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <steep_c.h>
#include <string.h>

enum { ROWS = 4, FEATURES = 64, CLASSES = 10, HIDDEN = 32 };
enum { WEIGHTS = HIDDEN * FEATURES + CLASSES };

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

/* The call must fail with this code, and say so with this text. */
static void refused(steep_code code, steep_code wanted, const char* text) {
  expect(code == wanted && strstr(steep_error_message(error), text) != NULL, text);
  steep_error_free(error);
}

static void expect_text(steep_bytes* bytes, const char* text) {
  expect(strstr(steep_bytes_data(bytes), text) != NULL, text);
  check(steep_bytes_free(bytes));
}

static char* file_of(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  expect(file != NULL, path);
  char* bytes = malloc(1 << 20);
  expect(bytes != NULL, "memory");
  *size = fread(bytes, 1, 1 << 20, file);
  fclose(file);
  return bytes;
}

static const float* floats(const steep_tensors* tensors, const char* name) {
  steep_array array;
  check(steep_tensors_find(tensors, name, &array, &error));
  expect(array.dtype == STEEP_DTYPE_FLOAT32, "float32");
  return array.data;
}

static const char* path_in(const char* folder, const char* name) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static steep_options* training_options(const char* loss) {
  steep_options* options = NULL;
  check(steep_options_new(STEEP_OPTIONS_TRAINING, &options, &error));
  check(steep_options_set_string(options, "loss", loss, &error));
  check(steep_options_set_string(options, "optimizer", "sgd", &error));
  check(steep_options_set_number(options, "lr", 0.125, &error));
  return options;
}

static steep_training* open_training(const char* path, steep_options* options) {
  steep_training* session = NULL;
  check(steep_training_open(path, options, &session, &error));
  check(steep_options_free(options));
  return session;
}

static void look_inside(const char* path, const char* folder, const steep_array* batch) {
  steep_options* options = training_options("mse");
  check(steep_options_set_string(options, "memory_limit", "1MiB", &error));
  steep_training* session = open_training(path, options);
  steep_plan plan;
  check(steep_training_plan(session, batch, 2, &plan, &error));
  expect(plan.memory_limit == 1 << 20 && plan.run_bytes > plan.parameter_bytes &&
             plan.run_bytes <= plan.memory_limit && plan.offloaded_bytes == 0,
         "the plan is within its limit");
  steep_memory* memory = NULL;
  steep_memory_report report;
  check(steep_training_memory_report(session, batch, 2, &memory, &error));
  check(steep_memory_get(memory, &report, &error));
  expect(report.limit == 1 << 20 && report.planned.bytes == plan.run_bytes, "the plan that runs");
  expect(
      report.plan_count > 0 && report.plans[0].bytes >= report.plans[report.plan_count - 1].bytes,
      "plans from the largest to the smallest");
  for (size_t i = 0; i < report.choice_count; ++i) {
    expect(strlen(report.choices[i].op) > 0 && report.choices[i].bytes > 0, "a choice has bytes");
  }
  expect(strlen(report.text) > 0, "a table");
  check(steep_memory_free(memory));
  expect(steep_memory_get(memory, &report, &error) == STEEP_ERROR_ARGUMENT, "it is freed");
  steep_error_free(error);

  steep_bytes* text = NULL;
  check(steep_training_dump(session, batch, 2, STEEP_DUMP_PASSES, &text, &error));
  expect_text(text, "fc0.weight");
  check(steep_training_dump(session, batch, 2, STEEP_DUMP_HTML, &text, &error));
  expect_text(text, "<html");
  check(steep_training_dump(session, NULL, 0, STEEP_DUMP_TEXT, &text, &error));
  expect_text(text, "fc0.weight");
  refused(steep_training_dump(session, batch, 2, 3, &text, &error), STEEP_ERROR_ARGUMENT,
          "no such format");
  refused(steep_training_dump(session, NULL, 0, STEEP_DUMP_HTML, &text, &error),
          STEEP_ERROR_ARGUMENT, "no compiled step");

  check(steep_training_checkpoint_hash(session, &text, &error));
  expect(steep_bytes_size(text) == 0, "no checkpoint was loaded");
  steep_bytes_free(text);
  check(steep_training_save_checkpoint(session, path_in(folder, "saved"), NULL, &error));
  check(steep_training_load_checkpoint(session, path_in(folder, "saved"), NULL, &error));
  check(steep_training_checkpoint_hash(session, &text, &error));
  expect(steep_bytes_size(text) > 0, "the checkpoint that was loaded");
  steep_bytes_free(text);
  check(steep_training_free(session));
}

/* Adapters are in the model that is exported, unless they are merged. */
static void export_adapters(const char* path) {
  steep_options* options = training_options("mse");
  check(steep_options_set_integer(options, "lora_rank", 2, &error));
  check(steep_options_add(options, "lora_targets", "fc0.weight", &error));
  steep_training* session = open_training(path, options);
  const char* const* names = NULL;
  size_t count = 0;
  check(steep_training_adapted(session, &names, &count, &error));
  expect(count == 1 && strcmp(names[0], "fc0.weight") == 0, "one weight has adapters");
  steep_bytes* model = NULL;
  for (int merged = 0; merged < 2; ++merged) {
    check(steep_options_new(STEEP_OPTIONS_EXPORT, &options, &error));
    check(steep_options_set_integer(options, "merge_adapters", merged, &error));
    check(steep_training_export_bytes(session, options, &model, &error));
    int found = 0;
    const char* bytes = steep_bytes_data(model);
    for (size_t i = 0; i + 6 < steep_bytes_size(model); ++i) {
      found |= memcmp(bytes + i, "lora_A", 6) == 0;
    }
    expect(found == !merged, "adapters are merged, or are there");
    steep_bytes_free(model);
    check(steep_options_set_integer(options, "external_data", 1, &error));
    refused(steep_training_export_bytes(session, options, &model, &error), STEEP_ERROR_ARGUMENT,
            "external_data");
    check(steep_options_free(options));
  }
  check(steep_training_export_bytes(session, NULL, &model, &error));
  steep_bytes_free(model);
  check(steep_training_free(session));
}

/* The same loss as bytes of a model and by its name. */
static void custom_loss(const char* path, const char* loss, const steep_array* batch) {
  size_t size = 0;
  char* bytes = file_of(loss, &size);
  steep_options* options = training_options("mean of squares");
  check(steep_options_set_loss_model(options, bytes, size, &error));
  free(bytes); /* it is copied */
  steep_training* ours = open_training(path, options);
  steep_training* theirs = open_training(path, training_options("mse"));
  steep_step step[2];
  for (int i = 0; i < 3; ++i) {
    check(steep_training_step(ours, batch, 2, &step[0], NULL, &error));
    check(steep_training_step(theirs, batch, 2, &step[1], NULL, &error));
    expect(fabs(step[0].loss - step[1].loss) < 1e-6 * fabs(step[1].loss), "the same loss");
  }
  check(steep_training_free(ours));
  check(steep_training_free(theirs));
  check(steep_options_new(STEEP_OPTIONS_INFERENCE, &options, &error));
  refused(steep_options_set_loss_model(options, "x", 1, &error), STEEP_ERROR_ARGUMENT,
          "of the wrong kind");
  check(steep_options_free(options));
}

/* A step writes to the caller's array. */
static void own_weights(const char* path, const steep_array* batch) {
  size_t size = 0;
  char* model = file_of(path, &size);
  static float bias[CLASSES];
  static float scores[CLASSES];
  const int64_t extent = CLASSES;
  const steep_array lent = {"fc1.bias", STEEP_DTYPE_FLOAT32, 1, &extent, bias, sizeof bias};
  steep_array wrong = lent;
  wrong.name = "none";
  steep_training* session = NULL;
  steep_options* options = training_options("mse");
  for (int i = 0; i < CLASSES; ++i) bias[i] = scores[i] = (float)i;
  refused(steep_training_open_weights(model, size, options, &wrong, 1, &session, &error),
          STEEP_ERROR_MODEL, "none");
  check(steep_training_open_weights(model, size, options, &lent, 1, &session, &error));
  check(steep_options_free(options));
  free(model);
  check(steep_training_step(session, batch, 2, NULL, NULL, &error));
  int changed = 0;
  for (int i = 0; i < CLASSES; ++i) changed += bias[i] != scores[i];
  expect(changed == CLASSES, "the step wrote to the caller's array");
  for (int i = 0; i < CLASSES; ++i) bias[i] = 50;
  steep_tensors* outputs = NULL;
  check(steep_training_eval(session, batch, 1, NULL, &outputs, &error));
  expect(floats(outputs, "logits")[0] > 25, "the session reads the caller's array");
  check(steep_tensors_free(outputs));
  check(steep_training_free(session));
}

/* Two processes that average their gradients: here both are this one, so that nothing changes. */
static void sums_of_others(const char* path, const steep_array* batch) {
  steep_training* alone = open_training(path, training_options("mse"));
  steep_training* two = open_training(path, training_options("mse"));
  steep_tensors* sums = NULL;
  steep_array sum;
  double weight = 0;
  double loss = 0;
  check(steep_training_step(alone, batch, 2, NULL, NULL, &error));
  check(steep_training_accumulate(two, batch, 2, NULL, NULL, &error));
  check(steep_training_accumulated_gradients(two, &weight, &loss, &sums, &error));
  expect(weight == 1 && steep_tensors_count(sums) == 4, "one part, of four parameters");
  for (size_t i = 0; i < 4; ++i) {
    check(steep_tensors_get(sums, i, &sum, &error));
    float* values = (float*)sum.data; /* the session's own */
    for (size_t j = 0; j < sum.bytes / sizeof(float); ++j) values[j] *= 2;
  }
  refused(steep_training_set_accumulated(two, 0, loss, &error), STEEP_ERROR_DATA, "positive");
  check(steep_training_set_accumulated(two, 2 * weight, 2 * loss, &error));
  check(steep_training_apply_gradients(two, NULL, &error));
  check(steep_tensors_free(sums));
  steep_tensors* ours = NULL;
  steep_tensors* theirs = NULL;
  check(steep_training_weights(two, NULL, 0, &ours, &error));
  check(steep_training_weights(alone, NULL, 0, &theirs, &error));
  const float* a = floats(ours, "fc0.weight");
  const float* b = floats(theirs, "fc0.weight");
  for (int i = 0; i < HIDDEN * FEATURES; ++i) expect(fabsf(a[i] - b[i]) < 1e-6F, "one step");
  check(steep_tensors_free(ours));
  check(steep_tensors_free(theirs));
  check(steep_training_free(alone));
  check(steep_training_free(two));
}

/* All weights in one array, with which a step is one loop. */
static void flat_weights(const char* path, const char* folder, const steep_array* batch) {
  steep_options* options = NULL;
  steep_gradients* session = NULL;
  check(steep_options_new(STEEP_OPTIONS_GRADIENTS, &options, &error));
  check(steep_options_add(options, "wrt", "fc0.weight", &error));
  check(steep_options_add(options, "wrt", "fc1.bias", &error));
  check(steep_gradients_open(path, options, &session, &error));
  check(steep_options_free(options));

  const int32_t* flags = NULL;
  size_t count = 0;
  int64_t elements = 0;
  steep_plan plan;
  steep_bytes* text = NULL;
  check(steep_gradients_differentiable(session, &flags, &count, &error));
  expect(count == 1 && flags[0] == 1, "the output may have a gradient");
  check(steep_gradients_weight_count(session, &elements, &error));
  expect(elements == WEIGHTS, "elements of two weights");
  check(steep_gradients_plan(session, batch, 1, &plan, &error));
  expect(plan.kernels > 0 && plan.run_bytes > 0, "kernels and memory");
  check(steep_gradients_dump(session, batch, 1, STEEP_DUMP_TEXT, &text, &error));
  expect_text(text, "fc1.bias");

  static float flat[WEIGHTS];
  static float slope[ROWS * CLASSES];
  steep_array arrays[2];
  steep_tensors* tensors = NULL;
  const int64_t dims[] = {ROWS, CLASSES};
  const int64_t flat_dims = WEIGHTS;
  const steep_array dy = {"logits", STEEP_DTYPE_FLOAT32, 2, dims, slope, sizeof slope};
  steep_array all = {"flat", STEEP_DTYPE_FLOAT32, 1, &flat_dims, flat, sizeof flat};
  check(steep_gradients_weights(session, &tensors, &error));
  for (size_t i = 0; i < 2; ++i) check(steep_tensors_get(tensors, i, &arrays[i], &error));
  steep_tensors* joined = NULL;
  check(steep_gradients_flatten(session, arrays, 2, &joined, &error));
  memcpy(flat, floats(joined, "flat"), sizeof flat);
  check(steep_tensors_free(joined));
  check(steep_tensors_free(tensors));
  check(steep_gradients_bind_flat(session, &all, &error));
  all.bytes -= sizeof(float);
  expect(steep_gradients_bind_flat(session, &all, &error) != STEEP_OK, "too few bytes");
  steep_error_free(error);
  check(steep_gradients_start_profile(session, &error));
  double losses[2];
  for (int i = 0; i < 2; ++i) {
    steep_run* run = NULL;
    check(steep_gradients_forward(session, batch, 1, &tensors, &run, &error));
    const float* logits = floats(tensors, "logits");
    losses[i] = 0;
    for (int j = 0; j < ROWS * CLASSES; ++j) losses[i] += logits[j] * logits[j] / 2;
    memcpy(slope, logits, sizeof slope);
    check(steep_tensors_free(tensors));
    check(steep_gradients_backward(session, run, &dy, 1, &tensors, &error));
    for (size_t j = 0; j < 2; ++j) check(steep_tensors_get(tensors, j, &arrays[j], &error));
    check(steep_gradients_flatten(session, arrays, 2, &joined, &error));
    const float* gradient = floats(joined, "flat");
    for (int j = 0; j < WEIGHTS; ++j) flat[j] -= 0.01F * gradient[j];
    check(steep_tensors_free(joined));
    check(steep_tensors_free(tensors));
    check(steep_run_free(run));
  }
  expect(losses[1] < losses[0], "forward reads the flat array");
  check(steep_gradients_write_profile(session, path_in(folder, "trace.json"), &error));
  check(steep_gradients_free(session));
}

static void run_values(const char* path) {
  static const float numbers[] = {1, 2, 3, 4};
  const int64_t extent = 2;
  const steep_array items[] = {{NULL, STEEP_DTYPE_FLOAT32, 1, &extent, numbers, 8},
                               {"named", STEEP_DTYPE_FLOAT32, 1, &extent, numbers + 2, 8}};
  steep_array x = items[0];
  x.name = "x";
  steep_inference* session = NULL;
  check(steep_inference_open(path, NULL, &session, &error));
  for (int absent = 0; absent < 2; ++absent) {
    steep_data* inputs = NULL;
    steep_data* outputs = NULL;
    steep_datum datum;
    check(steep_data_new(&inputs, &error));
    check(steep_data_add_sequence(inputs, "s", items, 2, &error));
    check(steep_data_add_tensor(inputs, &x, &error));
    refused(steep_data_add_tensor(inputs, &x, &error), STEEP_ERROR_ARGUMENT, "one name");
    if (absent) {
      check(steep_data_add_absent(inputs, "o", &error));
    } else {
      steep_array o = x;
      o.name = "o";
      check(steep_data_add_tensor(inputs, &o, &error));
    }
    expect(steep_data_count(inputs) == 3, "three values");
    check(steep_inference_run_data(session, inputs, NULL, 0, &outputs, &error));
    check(steep_data_get(outputs, 0, &datum, &error));
    expect(datum.kind == STEEP_DATUM_SEQUENCE && datum.count == 3, "the sequence with x");
    expect(strcmp(datum.name, "longer") == 0 && ((const float*)datum.items[1].data)[0] == 3,
           "its second tensor");
    check(steep_data_get(outputs, 1, &datum, &error));
    expect(datum.kind == STEEP_DATUM_TENSOR && datum.count == 1, "a tensor");
    expect(*(const char*)datum.items[0].data == !absent, "o is there, or is not");
    refused(steep_data_get(outputs, 2, &datum, &error), STEEP_ERROR_ARGUMENT, "out of range");
    check(steep_data_free(inputs));
    expect(steep_inference_run_data(session, inputs, NULL, 0, &outputs, &error) ==
               STEEP_ERROR_ARGUMENT,
           "freed");
    steep_error_free(error);
    check(steep_data_free(outputs));
  }
  check(steep_inference_free(session));
}

/* Each row once in an epoch, by batches of 3 of 4 rows. */
static void take_batches(const char* folder, const steep_array* batch) {
  steep_tensors* arrays = NULL;
  steep_tensors* taken = NULL;
  steep_options* options = NULL;
  steep_batches* batches = NULL;
  steep_array array;
  int64_t count = 0;
  int64_t rows = 0;
  char path[4096];
  snprintf(path, sizeof path, "%s", path_in(folder, "arrays.npz"));
  check(steep_save_arrays(path, batch, 2, &error));
  check(steep_map_arrays(path, &arrays, &error));
  check(steep_options_new(STEEP_OPTIONS_BATCHES, &options, &error));
  check(steep_options_set_integer(options, "batch_size", 3, &error));
  check(steep_batches_new(arrays, options, NULL, 0, &batches, &error));
  check(steep_batches_count(batches, &count, &error));
  check(steep_batches_row_count(batches, &rows, &error));
  expect(count == 2 && rows == ROWS, "two batches of four rows");
  double sum = 0;
  double whole = 0;
  for (int64_t i = 0; i < count; ++i) {
    check(steep_batches_get(batches, 1, i, &taken, &error));
    check(steep_tensors_find(taken, "x", &array, &error));
    expect(array.dims[0] == (i == 0 ? 3 : 1), "rows of a batch");
    for (size_t j = 0; j < array.bytes / sizeof(float); ++j) sum += ((const float*)array.data)[j];
    check(steep_tensors_free(taken));
  }
  for (int j = 0; j < ROWS * FEATURES; ++j) whole += ((const float*)batch[0].data)[j];
  expect(fabs(sum - whole) < 1e-4, "each row once");
  refused(steep_batches_get(batches, 0, 2, &taken, &error), STEEP_ERROR_DATA, "no such batch");
  check(steep_batches_free(batches));

  const int64_t chosen[] = {3, 1};
  refused(steep_batches_new(arrays, options, chosen, 0, &batches, &error), STEEP_ERROR_ARGUMENT,
          "No row");
  check(steep_batches_new(arrays, options, chosen, 2, &batches, &error));
  check(steep_tensors_free(arrays)); /* the batches keep what they need */
  check(steep_batches_count(batches, &count, &error));
  check(steep_batches_get(batches, 0, 0, &taken, &error));
  check(steep_tensors_find(taken, "x", &array, &error));
  expect(count == 1 && array.dims[0] == 2, "one batch of two rows");
  check(steep_tensors_free(taken));
  check(steep_batches_free(batches));
  check(steep_options_free(options));
}

static void check_models(const char* path, const steep_array* batch) {
  size_t size = 0;
  char* model = file_of(path, &size);
  steep_options* options = training_options("mse");
  steep_report* report = NULL;
  steep_obstacle obstacle;
  const steep_value* parameters = NULL;
  const char* const* names = NULL;
  const char* const* reasons = NULL;
  size_t count = 0;
  check(steep_check_model_bytes(model, size, NULL, options, &report, &error));
  expect(steep_report_obstacle_count(report) == 0, "it can be trained");
  expect(steep_report_unread_count(report) == 0, "all outputs");
  refused(steep_report_unread(report, 0, &obstacle, &error), STEEP_ERROR_ARGUMENT, "out of range");
  check(steep_report_parameters(report, &parameters, &count, &error));
  expect(count == 4 && strcmp(parameters[0].name, "fc0.weight") == 0, "four parameters");
  check(steep_report_left_out(report, &names, &reasons, &count, &error));
  expect(count == 0, "all constants are trained");
  check(steep_report_warnings(report, &names, &count, &error));
  expect(count == 0, "nothing is suspicious");
  check(steep_report_free(report));
  check(steep_options_free(options));

  steep_bytes* copy = NULL;
  check(steep_model_for_inference(model, size, NULL, &copy, &error));
  free(model);
  steep_inference* session = NULL;
  check(steep_inference_open_bytes(steep_bytes_data(copy), steep_bytes_size(copy), NULL, NULL,
                                   &session, &error));
  steep_plan plan;
  steep_bytes* text = NULL;
  check(steep_inference_plan(session, batch, 1, &plan, &error));
  expect(plan.kernels > 0 && plan.constant_bytes > 0, "kernels and constants");
  check(steep_inference_dump(session, batch, 1, STEEP_DUMP_HTML, &text, &error));
  expect_text(text, "<html");
  check(steep_bytes_free(copy));
  check(steep_inference_free(session));
}

int main(int argc, char** argv) {
  static float x[ROWS * FEATURES];
  static float label[ROWS * CLASSES];
  if (argc != 5) return 2;
  for (int i = 0; i < ROWS * FEATURES; ++i) x[i] = sinf((float)i);
  for (int i = 0; i < ROWS * CLASSES; ++i) label[i] = cosf((float)i);
  const int64_t x_dims[] = {ROWS, FEATURES};
  const int64_t label_dims[] = {ROWS, CLASSES};
  const steep_array batch[] = {{"x", STEEP_DTYPE_FLOAT32, 2, x_dims, x, sizeof x},
                               {"label", STEEP_DTYPE_FLOAT32, 2, label_dims, label, sizeof label}};
  look_inside(argv[1], argv[4], batch);
  export_adapters(argv[1]);
  custom_loss(argv[1], argv[2], batch);
  own_weights(argv[1], batch);
  sums_of_others(argv[1], batch);
  flat_weights(argv[1], argv[4], batch);
  run_values(argv[3]);
  take_batches(argv[4], batch);
  check_models(argv[1], batch);
  printf("all doors open\n");
  return 0;
}
