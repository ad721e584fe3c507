// Predicates, element by element. Their results are bool: no gradient passes.
#include "ops/op_def.h"
#include "ops/shape_arithmetic.h"

namespace steep {

extern const OpDef kEqual = {
    .name = "Equal", .elementwise = true, .stops_gradient = true, .elements = elements::equal};
extern const OpDef kGreater = {
    .name = "Greater", .elementwise = true, .stops_gradient = true, .elements = elements::greater};
extern const OpDef kGreaterOrEqual = {
    .name = "GreaterOrEqual", .elementwise = true, .stops_gradient = true};
extern const OpDef kLess = {
    .name = "Less", .elementwise = true, .stops_gradient = true, .elements = elements::less};
extern const OpDef kLessOrEqual = {
    .name = "LessOrEqual", .elementwise = true, .stops_gradient = true};
extern const OpDef kAnd = {
    .name = "And", .elementwise = true, .stops_gradient = true, .elements = elements::logical_and};
extern const OpDef kOr = {
    .name = "Or", .elementwise = true, .stops_gradient = true, .elements = elements::logical_or};
extern const OpDef kXor = {.name = "Xor", .elementwise = true, .stops_gradient = true};
extern const OpDef kNot = {
    .name = "Not", .elementwise = true, .stops_gradient = true, .elements = elements::logical_not};
extern const OpDef kIsNaN = {.name = "IsNaN", .elementwise = true, .stops_gradient = true};
extern const OpDef kIsInf = {.name = "IsInf",
                             .attributes = {{"detect_negative", 1}, {"detect_positive", 1}},
                             .elementwise = true,
                             .stops_gradient = true};

}  // namespace steep
