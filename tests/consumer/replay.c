/* Trains from an artifact on given batches, to compare machines: replay ARTIFACT BATCHES SAVED
 *
 * BATCHES has the bytes of all inputs of a step, one step after the other. Prints the loss of each
 * step, and then the parameters, one a line; SAVED is the artifact after the last step. */
#include <steep_artifact.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_INPUTS = 8 };

static steep_error* error = NULL;

/* Ends the program unless a call succeeded. */
static void check(steep_code code) {
  if (code == STEEP_OK) return;
  fprintf(stderr, "%s: %s\n", steep_code_name(code), steep_error_message(error));
  steep_error_free(error);
  exit(2);
}

/* Makes an array for an input, without content. */
static steep_array array_of(const steep_value* value) {
  steep_array array = {value->name, value->dtype, value->rank, value->dims, NULL, 0};
  array.bytes = steep_dtype_size(value->dtype);
  for (int32_t i = 0; i < value->rank; ++i) array.bytes *= (size_t)value->dims[i];
  array.data = malloc(array.bytes);
  if (array.data == NULL) exit(1);
  return array;
}

static void print_array(const steep_array* array) {
  printf("%s", array->name);
  for (size_t i = 0; i < array->bytes / steep_dtype_size(array->dtype); ++i) {
    const double value = array->dtype == STEEP_DTYPE_FLOAT64 ? ((const double*)array->data)[i]
                                                             : ((const float*)array->data)[i];
    printf(" %.17g", value);
  }
  printf("\n");
}

int main(int argc, char** argv) {
  if (argc != 4) return 1;
  steep_artifact* session = NULL;
  const steep_value* values = NULL;
  steep_array inputs[MOST_INPUTS];
  size_t count = 0;
  check(steep_artifact_open(argv[1], 0, &session, &error));
  check(steep_artifact_inputs(session, &values, &count, &error));
  if (count > MOST_INPUTS) return 1;
  for (size_t i = 0; i < count; ++i) inputs[i] = array_of(&values[i]);

  FILE* batches = fopen(argv[2], "rb");
  if (batches == NULL) return 1;
  for (;;) {
    size_t read = 0;
    for (size_t i = 0; i < count; ++i)
      read += fread((void*)inputs[i].data, 1, inputs[i].bytes, batches);
    if (read == 0) break;
    steep_step step;
    check(steep_artifact_step(session, inputs, count, &step, NULL, &error));
    printf("loss %.17g\n", step.loss);
  }
  fclose(batches);

  steep_tensors* weights = NULL;
  check(steep_artifact_weights(session, NULL, 0, &weights, &error));
  for (size_t i = 0; i < steep_tensors_count(weights); ++i) {
    steep_array array;
    check(steep_tensors_get(weights, i, &array, &error));
    print_array(&array);
  }
  check(steep_tensors_free(weights));
  check(steep_artifact_save(session, argv[3], &error));
  check(steep_artifact_free(session));
  for (size_t i = 0; i < count; ++i) free((void*)inputs[i].data);
  return 0;
}
