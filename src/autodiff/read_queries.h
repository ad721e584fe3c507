// Attention of which only some queries are read, because the model selects tokens by index.
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

/// A Gather of one token of x, or a Slice of some. x is [sequences, tokens, k] or, with `by_place`,
/// [tokens, sequences, k].
struct TokenCut {
  Node node;
  bool by_place = false;
  int64_t tokens = 1;  ///< number of selected tokens

  /// Applies the cut to an axis of `v`. The axis stays, also for a single token.
  Value along(Value v, int64_t axis) const;
};

/// The token cut of a node; nothing when the number of tokens is unknown. REQUIRES: Gather with a
/// constant of one element, or Slice of one of cut_axes(). Types inferred.
std::optional<TokenCut> token_cut(Node n);

/// A node that moves elements of an operand of attention, or of its result.
struct TokenMove {
  Node node;
  int operand = 0, output = 0;
  TokenAxes axes;  ///< of the output
};

/// An attention whose result is read, as rows, only by a TokenCut.
struct ReadQueries {
  MaskedAttention attention;
  Value result;                  ///< rows of tokens, [sequences, tokens, k] or [rows, k]
  std::vector<TokenMove> after;  ///< nodes from the product to the result
  Value source;                  ///< rows from which queries are made; null: compute all queries
  TokenAxes source_axes;
  std::vector<TokenMove> before;  ///< nodes from the source to the queries
};

/// By id of the result. Leaves out attention whose masks may not broadcast to the scores.
std::unordered_map<uint32_t, ReadQueries> find_read_queries(const Graph& graph,
                                                            const Readers& readers,
                                                            const TokenCut& cut);

/// The extents of `a.result` without the last one, from those of the source, `source_leads`, or
/// from the queries if there is no source (`source_leads` may be null then).
Value leads_of_result(const ReadQueries& a, const TokenCut& cut, Value source_leads);

/// The rows [p, k] of `a.result` that `cut` takes. `take` returns these rows of the source.
/// `tokens` int64[1]: the number of tokens per sequence.
Value attend_to_read(const ReadQueries& a, const TokenCut& cut, Value tokens,
                     const std::function<Value(Value)>& take);

}  // namespace steep
