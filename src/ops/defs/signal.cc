// Operators that compute features of signals and texts. They have no gradients.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kMelWeightMatrix = {.name = "MelWeightMatrix",
                                       .attributes = {{"output_datatype", 1}},
                                       .ranks = "e e e e e",
                                       .stops_gradient = true};
extern const OpDef kTfIdfVectorizer = {.name = "TfIdfVectorizer", .stops_gradient = true};

}  // namespace steep
