// Optionals at run time: an empty optional is an empty Datum; any other is its content.

#include "flow/rules.h"

namespace steep {

std::vector<Datum> run_optional(const DynamicCall& c) {
  return {c.inputs.empty() ? Datum() : c.inputs[0]};
}

std::vector<Datum> run_optional_get_element(const DynamicCall& c) {
  if (!c.has(0)) {
    c.fail("An optional is empty.", "an element", "nothing",
           "Ask OptionalHasElement before OptionalGetElement, in an If.");
  }
  return {c.inputs[0]};
}

std::vector<Datum> run_optional_has_element(const DynamicCall& c) {
  return {Tensor::scalar(c.has(0))};
}

}  // namespace steep
