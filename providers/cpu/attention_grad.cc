// steep.AttentionGrad in tiles: recomputes scores and probabilities from q, k and each row's
// maximum and sum. Dao 2023, FlashAttention-2, algorithm 2. One thread processes one head: the
// outer loop is over blocks of keys and accumulates dk and dv, the inner loop is over blocks of
// queries and accumulates dq in scratch. So the order of every sum is fixed. Tiles that masks hide
// are left out (attention_masks.h).

#include <omp.h>

#include <atomic>
#include <functional>

#include "providers/cpu/attention.h"
#include "providers/cpu/attention_masks.h"
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/attention_grad.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kQueryBlock = MaskBlocks::kBlock, kKeyBlock = MaskBlocks::kBlock;

/// The buffers of one thread. `row` is the length of a packed row of queries or keys, `value_row`
/// of values.
struct Buffers {
  float *dq, *deltas;                                  // per head
  float *keys, *key_columns, *values, *value_columns;  // per block of keys
  float *dk, *dv;
  float *q, *dy, *y;  // per block of queries
  float *scores, *dscores;
  uint32_t* words;
  size_t row, value_row, scores_row;
  size_t floats = 0;
  Philox philox;

  /// Divides the memory at `at`. A null `at` only counts the floats needed.
  Buffers(const AttentionProblem& p, const int64_t* seed, float* at) : philox(random_of(p, seed)) {
    const int64_t columns = std::min(kKeyBlock, p.keys), rows = std::min(kQueryBlock, p.queries);
    row = whole_vectors(p.width);
    value_row = whole_vectors(p.value_width);
    scores_row = whole_vectors(columns);
    const auto take = [&](int64_t count, size_t row_floats) {
      return take_floats(at, count, row_floats, &floats);
    };
    dq = take(p.queries, row);
    deltas = take(p.queries, 1);
    keys = take(columns, row);
    key_columns = take(p.width, scores_row);
    values = take(columns, value_row);
    value_columns = take(p.value_width, scores_row);
    dk = take(columns, row);
    dv = take(columns, value_row);
    q = take(rows, row);
    dy = take(static_cast<int64_t>(whole_vectors(rows)), value_row);
    y = take(static_cast<int64_t>(whole_vectors(rows)), value_row);
    scores = take(rows, scores_row);
    dscores = take(rows, scores_row);
    words = reinterpret_cast<uint32_t*>(take(p.random ? TileWords::size(rows, columns) : 0, 1));
  }
};

size_t place(const HeadStrides& strides, const Tile& t, int64_t row) {
  return static_cast<size_t>(strides.at(t.b, t.h) + row * strides.row);
}

/// Σ dy y of each row of a head, which the gradient of Softmax subtracts. It is summed in order of
/// depth, as `multiply` does: if one probability of a row is 1 and the others are 0, it equals the
/// gradient of that probability bit for bit, and the gradient of the scores is 0.
void row_deltas(const AttentionProblem& p, const AttentionGradients& g, const Buffers& s, int64_t b,
                int64_t h) {
  const Floats d;
  const hn::RebindToSigned<Floats> d32;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto row = hn::Set(d32, static_cast<int32_t>(s.value_row));
  for (int64_t i = 0; i < p.queries; i += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, p.queries - i);
    const Tile t{b, h, i, rows, 0, 0};
    pack_rows(g.dy, place(p.dy, t, i), p.dy.row, rows, p.value_width, p.bf16, 1, s.dy);
    pack_rows(g.y, place(p.y, t, i), p.y.row, rows, p.value_width, p.bf16, 1, s.y);
    for (int64_t r = 0; r < rows; r += lanes) {  // values past the last row are unused
      const auto first = hn::Mul(hn::Iota(d32, static_cast<int32_t>(r)), row);
      auto sum = hn::Zero(d);
      for (int64_t k = 0; k < p.value_width; ++k) {
        sum = hn::MulAdd(hn::GatherIndex(d, s.dy + k, first), hn::GatherIndex(d, s.y + k, first),
                         sum);
      }
      hn::StoreU(sum, d, s.deltas + i + r);
    }
  }
}

/// In place: scores to probabilities after dropout, and gradients of these probabilities to
/// gradients of scores. Elements past the last column are undefined. `open`: no mask affects the
/// tile.
void differentiate_row(const AttentionProblem& p, const AttentionArrays& a, const Tile& t,
                       int64_t r, bool open, float max, float sum, float delta,
                       const uint32_t* words, float* s, float* ds) {
  const Floats d;
  if (!open) mask_row(p, a, t, r, s);
  const Keeper keep(p.dropout);
  const auto scale = hn::Set(d, static_cast<float>(p.random ? p.dropout.scale : 1));
  const auto maxima = hn::Set(d, max), shares = hn::Set(d, 1 / sum);
  const auto deltas = hn::Set(d, delta);
  const auto columns = static_cast<size_t>(t.columns);
  const uint8_t* mask = p.keep.present && !open ? keep_row(p, a.keep, t, r) : nullptr;
  for (size_t j = 0; j < columns; j += hn::Lanes(d)) {
    const auto prob = hn::Mul(exp_bounded(d, hn::Sub(hn::LoadU(d, s + j), maxima)), shares);
    auto dprob = hn::LoadU(d, ds + j);
    auto dropped = prob;
    if (words != nullptr) {
      dprob = keep(hn::Mul(dprob, scale), words + j);
      dropped = keep(prob, words + j);
    }
    auto slope = hn::Mul(prob, hn::Sub(dprob, deltas));
    if (mask != nullptr) {
      slope = hn::IfThenElseZero(kept(p, mask, j, std::min(hn::Lanes(d), columns - j)), slope);
    }
    hn::StoreU(dropped, d, s + j);
    hn::StoreU(slope, d, ds + j);
  }
}

void add_tile(const AttentionProblem& p, const AttentionArrays& a, const AttentionGradients& g,
              const Buffers& s, const Tile& t, bool open) {
  const auto rows = static_cast<size_t>(t.rows), columns = static_cast<size_t>(t.columns);
  const auto width = static_cast<size_t>(p.width), values = static_cast<size_t>(p.value_width);
  pack_rows(a.q, place(p.q, t, t.i), p.q.row, t.rows, p.width, p.bf16, p.scale, s.q);
  pack_rows(g.dy, place(p.dy, t, t.i), p.dy.row, t.rows, p.value_width, p.bf16, 1, s.dy);
  auto across = [&](const float* x, size_t depth, size_t x_row, const float* y, float* to) {
    multiply({.depth = depth,
              .a = x,
              .a_row = x_row,
              .a_depth = 1,
              .b = y,
              .b_row = whole_vectors(t.columns),
              .c = to,
              .c_row = s.scores_row},
             rows, columns);
  };
  across(s.q, width, s.row, s.key_columns, s.scores);
  across(s.dy, values, s.value_row, s.value_columns, s.dscores);
  TileWords words;
  if (p.random) words.draw(p, s.philox, t, s.words);
  const int64_t first = (t.b * p.heads + t.h) * p.queries + t.i;
  for (int64_t r = 0; r < t.rows; ++r) {
    const size_t at = static_cast<size_t>(r) * s.scores_row;
    differentiate_row(p, a, t, r, open, g.maxima[first + r], g.sums[first + r], s.deltas[t.i + r],
                      p.random ? words.row(r) : nullptr, s.scores + at, s.dscores + at);
  }
  auto down = [&](const float* x, const float* y, size_t y_row, float* to, size_t n) {
    multiply({.depth = rows,
              .a = x,
              .a_row = 1,
              .a_depth = s.scores_row,
              .b = y,
              .b_row = y_row,
              .c = to,
              .c_row = y_row,
              .old = Old::add},
             columns, n);
  };
  down(s.scores, s.dy, s.value_row, s.dv, values);
  down(s.dscores, s.q, s.row, s.dk, width);
  multiply({.depth = columns,
            .a = s.dscores,
            .a_row = s.scores_row,
            .a_depth = 1,
            .b = s.keys,
            .b_row = s.row,
            .c = s.dq + static_cast<size_t>(t.i) * s.row,
            .c_row = s.row,
            .old = Old::add},
           rows, width);
}

void pack_keys(const AttentionProblem& p, const AttentionArrays& a, const Buffers& s,
               const Tile& t) {
  pack_rows(a.k, place(p.k, t, t.j), p.k.row, t.columns, p.width, p.bf16, 1, s.keys);
  transpose_tile(s.keys, s.row, t.columns, p.width, s.key_columns);
  pack_rows(a.v, place(p.v, t, t.j), p.v.row, t.columns, p.value_width, p.bf16, 1, s.values);
  transpose_tile(s.values, s.value_row, t.columns, p.value_width, s.value_columns);
}

void differentiate_head(const AttentionProblem& p, const AttentionArrays& a,
                        const MaskBlocks& masks, const AttentionGradients& g, const Buffers& s,
                        int64_t b, int64_t h) {
  row_deltas(p, g, s, b, h);
  std::fill_n(s.dq, static_cast<size_t>(p.queries) * s.row, 0.0F);
  const float* maxima = g.maxima + (b * p.heads + h) * p.queries;
  for (int64_t j = 0; j < p.keys; j += kKeyBlock) {
    Tile t{b, h, 0, 0, j, std::min(kKeyBlock, p.keys - j)};
    std::fill_n(s.dk, static_cast<size_t>(t.columns) * s.row, 0.0F);
    std::fill_n(s.dv, static_cast<size_t>(t.columns) * s.value_row, 0.0F);
    bool packed = false;
    for (int64_t i = 0; i < p.queries; i += kQueryBlock) {
      t.i = i;
      t.rows = std::min(kQueryBlock, p.queries - i);
      const TileMask mask = masks.of(t);
      const bool hidden = mask == TileMask::low || mask == TileMask::shut;
      if (hidden && has_other_scores(t, maxima + i)) continue;
      if (!packed) pack_keys(p, a, s, t);
      packed = true;
      add_tile(p, a, g, s, t, mask == TileMask::open);
    }
    unpack_rows(s.dk, t.columns, p.width, p.bf16, 1, g.dk, place(p.dk, t, j), p.dk.row);
    unpack_rows(s.dv, t.columns, p.value_width, p.bf16,
                static_cast<float>(p.random ? p.dropout.scale : 1), g.dv, place(p.dv, t, j),
                p.dv.row);
  }
  unpack_rows(s.dq, p.queries, p.width, p.bf16, p.scale, g.dq, static_cast<size_t>(p.dq.at(b, h)),
              p.dq.row);
}

}  // namespace

size_t attention_grad_scratch(const AttentionProblem& p) {
  return Buffers(p, nullptr, nullptr).floats;
}

/// One head of one batch entry. `masks`: see MaskBlocks.
void differentiate(const AttentionProblem& p, const AttentionArrays& a, const AttentionGradients& g,
                   const uint8_t* masks, int64_t pair, float* scratch) {
  differentiate_head(p, a, MaskBlocks(p, masks), g, Buffers(p, a.seed, scratch), pair / p.heads,
                     pair % p.heads);
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(attention_grad_scratch);
HWY_EXPORT(differentiate);

class AttentionGrad final : public Kernel {
 public:
  explicit AttentionGrad(const AttentionProblem& p)
      : p_(p),
        slots_(std::min<int64_t>(p.pairs(), omp_get_max_threads())),
        slot_floats_(static_cast<int64_t>(HWY_DYNAMIC_DISPATCH(attention_grad_scratch)(p))) {
    scratch_bytes = sizeof(float) * static_cast<size_t>(slots_ * slot_floats_) +
                    static_cast<size_t>(MaskBlocks::bytes(p));
    // q k and dq, dk have the queries' width; the gradient of probabilities and dv have the values'
    // width.
    flops = 2.0 *
            static_cast<double>(p.pairs() * p.queries * p.keys * (3 * p.width + 2 * p.value_width));
  }

  void execute(const KernelArgs& args) const override {
    const AttentionArrays arrays{.q = args.in[1],
                                 .k = args.in[2],
                                 .v = args.in[3],
                                 .bias = p_.bias.present ? args.input<float>(7) : nullptr,
                                 .keep = p_.keep.present ? args.input<uint8_t>(8) : nullptr,
                                 .seed = p_.random ? args.input<int64_t>(9) : nullptr};
    const AttentionGradients gradients{args.in[0],           args.in[4],  args.input<float>(5),
                                       args.input<float>(6), args.out[0], args.out[1],
                                       args.out[2]};
    float* const scratch = static_cast<float*>(args.scratch);
    auto* const masks = reinterpret_cast<uint8_t*>(scratch + slots_ * slot_floats_);
    read_masks(p_, arrays, masks);
    std::atomic<int64_t> next{0};  // dynamic: masks make heads unequal
    parallel_for(slots_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        for (int64_t pair = next++; pair < p_.pairs(); pair = next++) {
          HWY_DYNAMIC_DISPATCH(differentiate)
          (p_, arrays, gradients, masks, pair, scratch + slot * slot_floats_);
        }
      }
    });
  }

 private:
  AttentionProblem p_;
  int64_t slots_, slot_floats_;
};

std::unique_ptr<Kernel> make_attention_grad(const NodeSpec& node, std::string* why_not) {
  const auto problem = read_attention(node, why_not);
  return problem ? std::make_unique<AttentionGrad>(*problem) : nullptr;
}

}  // namespace

void register_attention_grad(std::vector<Candidate>& list) {
  list.push_back({"steep.AttentionGrad", "tiles", make_attention_grad});
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
