// Indices of the boxes that remain after every box that overlaps a better box is dropped.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kNonMaxSuppression = {.name = "NonMaxSuppression",
                                         .attributes = {{"center_point_box", 0}},
                                         .ranks = "3 3 e e e",
                                         .stops_gradient = true,
                                         .dynamic = true};

}  // namespace steep
