#include "train/packed_weights.h"

#include <vector>

#include "ops/build.h"
#include "runtime/packing.h"

namespace steep {

Value stay_packed(Value state) {
  const DType dtype = state.dtype();
  if (bits_of(dtype) >= 8) return state;
  Graph& g = state.graph();
  const std::vector<Node> readers = g.users()[state.id()];
  if (readers.empty()) return state;
  const Dims dims = state.type().dims();
  g.set_tensor(state, pack(*state.tensor()));
  const Graph::Scope scope(g, Phase::forward, state.name());
  const Value unpacked =
      apply("steep.Unpack", {state}, {{"dtype", static_cast<int64_t>(dtype)}, {"shape", dims}});
  g.place_like(unpacked.producer(), readers.front());
  g.replace_uses(state, unpacked);
  unpacked.producer().set_input(0, state);
  return state;
}

}  // namespace steep
