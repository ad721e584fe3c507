// steep.CountedRows(labels[…]){ignore_index, even} → rows int64[p]: indices of labels, in row-major
// order, ascending and distinct. They contain the index of every label other than ignore_index, and
// may contain others, so that p takes few different values (flow/rows.cc): the nodes that compute
// only these rows are planned once for each p.
//
// steep.CheckedRows(rows, labels, leads) → rows: checks that labels have the shape `leads`, the
// shape of the scores without their class axis. Specialisation removes it once shapes are known.
#include "ops/steep_types.h"

namespace steep {
namespace {

std::vector<Type> counted_rows_infer(Node /*n*/) { return {{DType::i64, Shape{Dim()}}}; }

std::vector<Type> checked_rows_infer(Node n) {
  const auto labels = shape_if_known(n.input(1)), leads = shape_in(n.input(2));
  bool fit = !labels || !leads || labels->size() == leads->size();
  for (size_t i = 0; fit && labels && leads && i < labels->size(); ++i) {
    const Dim &a = (*labels)[i], &b = (*leads)[i];
    fit = !a.known() || !b.known() || a.value() == b.value();
  }
  if (!fit) {
    throw_shape_error(n, "Scores and labels differ in their number of rows.",
                      to_string(leads) + ", as the scores have it", to_string(labels));
  }
  return {n.input(0).type()};
}

Value rows_of(Node n) { return n.input(0); }

}  // namespace

extern const OpDef kSteepCountedRows = {.name = "steep.CountedRows",
                                        .attributes = {{"even", 0}, {"ignore_index", -100}},
                                        .stops_gradient = true,
                                        .dynamic = true,
                                        .infer = counted_rows_infer};

extern const OpDef kSteepCheckedRows = {.name = "steep.CheckedRows",
                                        .stops_gradient = true,
                                        .infer = checked_rows_infer,
                                        .simplify = rows_of};

}  // namespace steep
