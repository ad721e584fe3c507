// Operations on the bits of integers, element by element.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kBitShift = {.name = "BitShift", .elementwise = true, .stops_gradient = true};
extern const OpDef kBitwiseAnd = {
    .name = "BitwiseAnd", .elementwise = true, .stops_gradient = true};
extern const OpDef kBitwiseNot = {
    .name = "BitwiseNot", .elementwise = true, .stops_gradient = true};
extern const OpDef kBitwiseOr = {.name = "BitwiseOr", .elementwise = true, .stops_gradient = true};
extern const OpDef kBitwiseXor = {
    .name = "BitwiseXor", .elementwise = true, .stops_gradient = true};

}  // namespace steep
