#include "ir/seed.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace steep {
namespace {

constexpr std::string_view kName = "steep.seed";

}  // namespace

bool is_seed(Value input) { return input.name() == kName; }

Value seed_of(Graph& graph) {
  const auto& inputs = graph.inputs();
  const auto found = std::find_if(inputs.begin(), inputs.end(), is_seed);
  return found != inputs.end() ? *found
                               : graph.add_input(std::string(kName), {DType::i64, Shape{2}});
}

}  // namespace steep
