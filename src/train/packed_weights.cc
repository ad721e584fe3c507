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

namespace {

/// The weight that lies at the place `state`, for one reader.
Value read_again(Value state, const Type& type, Phase phase, int64_t reader) {
  const Graph::Scope scope(state.graph(), phase, state.name());
  const auto dtype = static_cast<int64_t>(type.dtype);
  const Dims dims = type.dims();
  const bool packed = bits_of(type.dtype) < 8;
  const auto bytes = static_cast<int64_t>(packed_bytes(type.dtype, element_count(dims)));
  const Value read = apply("steep.ReadFile", {state},
                           {{"dtype", packed ? static_cast<int64_t>(DType::u8) : dtype},
                            {"shape", packed ? Dims{bytes} : dims},
                            {"reader", reader}});
  return packed ? apply("steep.Unpack", {read}, {{"dtype", dtype}, {"shape", dims}}) : read;
}

}  // namespace

Value stay_on_disk(Value state) {
  Graph& g = state.graph();
  const Type type = state.type();
  const std::vector<Node> readers = g.users()[state.id()];
  g.set_type(state, {DType::i64, Shape{2}});
  int64_t count = 0;
  for (const Node reader : readers) {
    const size_t first = g.node_slots();
    const Value weight = read_again(state, type, reader.phase(), count++);
    for (size_t id = first; id < g.node_slots(); ++id)
      g.place_like(Node(&g, static_cast<uint32_t>(id)), reader);
    for (int i = 0; i < reader.input_count(); ++i) {
      if (reader.input(i) == state) reader.set_input(i, weight);
    }
  }
  std::vector<Output> outputs = g.outputs();
  for (Output& o : outputs) {
    if (o.value == state) o.value = read_again(state, type, o.phase, count++);
  }
  g.set_outputs(std::move(outputs));
  return state;
}

}  // namespace steep
