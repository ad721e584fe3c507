// The first sequence_lens[b] elements of batch b along `time_axis` in reverse order
#include "ops/positions.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Step t of a sequence of length l comes from step l - 1 - t; padding is copied in place. A length
/// beyond the axis, or below 0, gives an index out of range, which GatherND refuses.
std::vector<Value> reverse_sequence_decompose(Node n) {
  Value x = n.input(0), lengths = unsqueeze(cast(n.input(1), DType::i64), {1});
  const int64_t batch = integer_of(n, "batch_axis");
  const int64_t time = integer_of(n, "time_axis");
  if (batch + time != 1 || batch * time != 0) {
    throw ModelError({.what = "The axes of a sequence are not the first two.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = "batch_axis and time_axis 0 and 1, or 1 and 0",
                      .received = std::to_string(batch) + " and " + std::to_string(time)});
  }
  Ints order{1, 0};
  for (int64_t i = 2; i < x.rank(); ++i) order.push_back(i);
  if (batch == 1) x = transpose(x, order);
  Value step = unsqueeze(positions(extent_of(x, 1)), {0});
  Value from = where(less(step, lengths), lengths - 1 - step, step);
  from = where(less(lengths, 0), -0x1p62, from);
  Value y = apply("GatherND", {x, unsqueeze(from, {2})}, {{"batch_dims", int64_t{1}}});
  return {batch == 1 ? transpose(y, order) : y};
}

}  // namespace

extern const OpDef kReverseSequence = {.name = "ReverseSequence",
                                       .attributes = {{"batch_axis", 1}, {"time_axis", 0}},
                                       .ranks = "2+ 1",
                                       .decompose = reverse_sequence_decompose};

}  // namespace steep
