// Follows the rows of a batch through a graph, node by node, for open_batch().
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ops/build.h"
#include "ops/shape_arithmetic.h"

namespace steep::batch {

/// The position of the batch's rows in a value: `axis` has `each` consecutive entries per row.
struct Rows {
  int64_t axis = 0;
  int64_t each = 1;
  bool operator==(const Rows&) const = default;
};

/// Thrown when rows cannot be followed.
struct Lost {
  std::string why;
};

inline constexpr const char* kMixes = "mixes rows";
inline constexpr const char* kNumber = "holds a number of rows";
inline constexpr const char* kUnknown = "is not known to keep rows apart";

[[noreturn]] inline void lose(const char* why) { throw Lost{why}; }
inline void need(bool holds, const char* why = kMixes) {
  if (!holds) lose(why);
}

using Placed = std::optional<Rows>;  ///< none: the value is the same for every batch

inline int64_t rank_of(Value v) {
  need(v && v.type().shape.has_value() && v.type().kind == Kind::tensor, kUnknown);
  return v.rank();
}

inline std::optional<int64_t> product(const Shape& shape, size_t from, size_t to) {
  int64_t all = 1;
  for (size_t i = from; i < to; ++i) {
    if (!shape[i].known()) return {};
    if (__builtin_mul_overflow(all, shape[i].value(), &all)) return {};
  }
  return all;
}

/// Follows the rows through one graph. Throws Lost, and errors of type inference.
class RowFollower {
 public:
  RowFollower(Graph& graph, std::string symbol, int64_t rows)
      : graph_(graph), symbol_(std::move(symbol)), rows_(rows) {}

  void follow();

 private:
  bool is_batch(const Dim& d) const { return !d.known() && d.symbol() == symbol_; }
  bool is_batch(const Element& e) const { return !e.number && e.symbol == symbol_; }

  Placed place(Value v) const;
  Placed in(Node n, int i) const { return place(n.input(i)); }
  bool is_size(Value v) const { return v && sizes_.count(v.id()) != 0; }
  /// Throws Lost unless the inputs are the same for every batch and hold no extent of the batch.
  void need_same(Node n, int first, int last = 1 << 20) const;

  void visit(Node n);

  void name_extent(Value y, size_t axis) const;

  /// Infers the types again after earlier nodes were rewritten; drops known contents of the
  /// results.
  void infer_anew(Node n) const;

  /// Shape arithmetic: marks `y` as holding an extent of the batch, unless all its elements are
  /// known to be something else.
  void note_size(Value y);

  bool takes_sizes(Node n) const;

  // --- rows of nodes -----------------------------------------------------------------------------

  std::vector<Placed> outputs_of(Node n);
  std::vector<Placed> same_place(Node n) { return {in(n, 0)}; }

  /// Broadcasting aligns operands from the right: rows may meet rows only, or extents of 1.
  std::vector<Placed> elementwise(Node n);

  /// Whether `v` has extent 1, or no axis, at this axis (negative, counted from the end).
  bool is_broadcast(Value v, int64_t axis) const;

  /// For nodes that mix elements only along attribute `axis`.
  std::vector<Placed> along_axis(Node n);

  /// The rows of input 0; the other inputs must have none.
  Rows data(Node n) const;

  static Ints constant_ints(Value v);

  std::vector<Placed> cum_sum(Node n);
  std::vector<Placed> layer_norm(Node n);
  std::vector<Placed> reduce(Node n);
  std::vector<Placed> transpose(Node n);
  std::vector<Placed> concat(Node n);
  std::vector<Placed> slice(Node n);
  std::vector<Placed> pad(Node n);
  std::vector<Placed> tile(Node n);
  std::vector<Placed> gather(Node n);
  std::vector<Placed> gather_elements(Node n);
  std::vector<Placed> one_hot(Node n);
  std::vector<Placed> trilu(Node n);

  /// Elements share a scale: all, those of one index of `axis`, or blocks along it. Scales of rows
  /// have rows themselves.
  std::vector<Placed> quantise(Node n);

  // --- products ----------------------------------------------------------------------------------

  std::vector<Placed> matmul(Node n);
  std::vector<Placed> einsum(Node n);

  // --- layers ------------------------------------------------------------------------------------

  std::vector<Placed> images(Node n);
  std::vector<Placed> max_pool(Node n);
  std::vector<Placed> resize(Node n);

  /// Removes initial states that are zeros with a fixed batch: zeros are the default.
  void leave_out_zeros(Node n) const;

  std::vector<Placed> recurrent(Node n);

  // --- shapes ------------------------------------------------------------------------------------

  std::vector<Placed> flatten(Node n);
  std::vector<Placed> squeeze(Node n);
  std::vector<Placed> unsqueeze(Node n);

  /// The one axis among these extents that holds the rows; the other extents do not depend on the
  /// batch.
  std::optional<int64_t> axis_of(const Elements& extents) const;

  std::vector<Placed> constant_of_shape(Node n);

  /// Replaces the extent of the rows in the shape of Expand by 1, which keeps the operand's extent.
  void rewrite_expand(Node n);

  std::vector<Placed> expand(Node n);

  /// Where Reshape moves the rows, and the shape that it needs for any number of rows.
  struct Reshaped {
    Rows at;
    Ints target{};  ///< empty: no change
  };

  Reshaped reshaped(Node n) const;

  /// For shapes with a -1 elsewhere, whose value depends on the leading extent: writes that one as
  /// its present number, and the leading extent as -1.
  Reshaped resolved(const Rows& at, Elements extents, const Shape& to, size_t axis,
                    std::optional<int64_t> each) const;

  static Ints with(const Elements& extents, size_t axis, int64_t lead);

  void rewrite_reshape(Node n);

  std::vector<Placed> reshape(Node n);

  Graph& graph_;
  std::string symbol_;
  int64_t rows_;
  std::unordered_map<uint32_t, Rows> placed_;  // by value id
  std::set<uint32_t> sizes_;                   // values that hold the number of rows
};

}  // namespace steep::batch
