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

/// Where the rows of a batch lie in a value: `axis` has `each` entries for one row, row by row.
struct Rows {
  int64_t axis = 0;
  int64_t each = 1;
  bool operator==(const Rows&) const = default;
};

/// Why rows cannot be followed.
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

using Placed = std::optional<Rows>;  ///< none: the same for every batch

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

/// Follows the rows through one graph. Throws Lost, and what type inference throws.
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
  /// The same for every batch, and no extent of one.
  void need_same(Node n, int first, int last = 1 << 20) const;

  void visit(Node n);

  void name_extent(Value y, size_t axis) const;

  /// Nodes before it may have become others: what was known of its results is forgotten.
  void infer_anew(Node n) const;

  /// Shape arithmetic: an extent of the batch, unless every element is another.
  void note_size(Value y);

  bool takes_sizes(Node n) const;

  // --- what nodes do with rows -------------------------------------------------------------------

  std::vector<Placed> outputs_of(Node n);
  std::vector<Placed> same_place(Node n) { return {in(n, 0)}; }

  /// Operands meet from the right: rows with rows, and nothing else with them.
  std::vector<Placed> elementwise(Node n);

  /// Has `v` one entry, or none, at this axis counted from the end (negative)?
  bool is_broadcast(Value v, int64_t axis) const;

  /// Of nodes that work along attribute `axis`, alone.
  std::vector<Placed> along_axis(Node n);

  /// Of input 0, which alone has rows.
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

  // --- products ----------------------------------------------------------------------------------

  std::vector<Placed> matmul(Node n);
  std::vector<Placed> einsum(Node n);

  // --- layers ------------------------------------------------------------------------------------

  std::vector<Placed> images(Node n);
  std::vector<Placed> max_pool(Node n);
  std::vector<Placed> resize(Node n);

  /// Initial states of zeros, which are the rule where there are none, but of a fixed batch.
  void leave_out_zeros(Node n) const;

  std::vector<Placed> recurrent(Node n);

  // --- shapes ------------------------------------------------------------------------------------

  std::vector<Placed> flatten(Node n);
  std::vector<Placed> squeeze(Node n);
  std::vector<Placed> unsqueeze(Node n);

  /// The one axis of these extents that is that of the rows; the others do not depend on them.
  std::optional<int64_t> axis_of(const Elements& extents) const;

  std::vector<Placed> constant_of_shape(Node n);

  /// What Expand takes for the extent of the rows becomes 1: as it is.
  void rewrite_expand(Node n);

  std::vector<Placed> expand(Node n);

  /// How Reshape moves rows, and what its shape has to be for any number of them.
  struct Reshaped {
    Rows at;
    Ints target{};  ///< empty: as it is
  };

  Reshaped reshaped(Node n) const;

  /// The rest has a -1, which the leading extent decides: each is written as the other is now.
  Reshaped resolved(const Rows& at, Elements extents, const Shape& to, size_t axis,
                    std::optional<int64_t> each) const;

  static Ints with(const Elements& extents, size_t axis, int64_t lead);

  void rewrite_reshape(Node n);

  std::vector<Placed> reshape(Node n);

  Graph& graph_;
  std::string symbol_;
  int64_t rows_;
  std::unordered_map<uint32_t, Rows> placed_;  // by value
  std::set<uint32_t> sizes_;                   // values that hold the number of rows
};

}  // namespace steep::batch
