// Attention of which only some queries are read: those of tokens that the model takes by number.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "autodiff/masked_attention.h"
#include "autodiff/token_axes.h"
#include "ir/graph.h"
#include "ir/readers.h"

namespace steep {

/// Gather of one token of x, or Slice of some. x is [sequences, tokens, k] or, `by_place`,
/// [tokens, sequences, k].
struct TokenCut {
  Node node;
  bool by_place = false;
  int64_t tokens = 1;  ///< that it takes

  /// The same of an axis of `v`, which stays an axis where one is taken.
  Value along(Value v, int64_t axis) const;
};

/// What a node takes of tokens; nothing where the model does not say how many. REQUIRES: Gather by
/// a constant of one element, or Slice of one of cut_axes(). Types inferred.
std::optional<TokenCut> token_cut(Node n);

/// A node that moves an operand of attention, or its result.
struct TokenMove {
  Node node;
  int operand = 0, output = 0;
  TokenAxes axes;  ///< of the output
};

/// One attention whose result is read by a TokenCut alone, as rows.
struct ReadQueries {
  MaskedAttention attention;
  Value result;                  ///< rows of tokens, [sequences, tokens, k] or joined
  std::vector<TokenMove> after;  ///< from the product to the result
  Value source;                  ///< rows that queries are made of; null: all are computed
  TokenAxes source_axes;
  std::vector<TokenMove> before;  ///< from the source to the queries
};

/// By result. Nothing of attention whose masks do not broadcast to its scores for sure.
std::unordered_map<uint32_t, ReadQueries> find_read_queries(const Graph& graph,
                                                            const Readers& readers,
                                                            const TokenCut& cut);

/// The extents […] of `a.result` but for its last, of `source_leads`, those of the source; of the
/// queries where there is no source (then a null value will do).
Value leads_of_result(const ReadQueries& a, const TokenCut& cut, Value source_leads);

/// The rows [p, k] of `a.result` that `cut` takes. `take` gives these rows of the source; `tokens`
/// int64[1] is how many there are in a sequence.
Value attend_to_read(const ReadQueries& a, const TokenCut& cut, Value tokens,
                     const std::function<Value(Value)>& take);

}  // namespace steep
