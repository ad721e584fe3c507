// steep.Attention in tiles: running maxima and sums of each row, no score matrix. Dao 2023,
// FlashAttention-2, algorithm 1. Tiles that masks hide are left out (attention_masks.h).

#include "providers/cpu/attention.h"

#include <omp.h>

#include <atomic>
#include <cmath>
#include <functional>

#include "providers/cpu/attention_masks.h"
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kQueryBlock = MaskBlocks::kBlock, kKeyBlock = MaskBlocks::kBlock;
/// The number of queries that share one packing of the keys.
constexpr int64_t kChunk = 256;

/// The buffers of one thread.
struct Buffers {
  float *q, *sums, *maxima, *totals, *factors;  // per chunk
  float *key_rows, *key_columns, *values;       // per block of keys
  float* scores;
  uint32_t* words;
  size_t q_row, sums_row, scores_row;
  size_t floats = 0;
  Philox philox;

  /// Divides the memory at `at`. A null `at` only counts the floats needed.
  Buffers(const AttentionProblem& p, const int64_t* seed, float* at) : philox(random_of(p, seed)) {
    const int64_t chunk = std::min(kChunk, p.queries), keys = std::min(kKeyBlock, p.keys);
    const int64_t rows = std::min(kQueryBlock, p.queries);
    q_row = whole_vectors(p.width);
    sums_row = whole_vectors(p.value_width);
    scores_row = whole_vectors(keys);
    const auto take = [&](int64_t count, size_t row_floats) {
      return take_floats(at, count, row_floats, &floats);
    };
    q = take(chunk, q_row);
    sums = take(chunk, sums_row);
    maxima = take(chunk, 1);
    totals = take(chunk, 1);
    factors = take(rows, 1);
    key_rows = take(keys, q_row);
    key_columns = take(p.width, scores_row);
    values = take(keys, sums_row);
    scores = take(rows, scores_row);
    words = reinterpret_cast<uint32_t*>(take(p.random ? TileWords::size(rows, keys) : 0, 1));
  }
};

/// Processes one tile: scores, then probabilities, then their contribution to the weighted sums.
void add_tile(const AttentionProblem& p, const AttentionArrays& a, const Buffers& s, const Tile& t,
              int64_t r0, bool open) {
  const Floats d;
  const auto rows = static_cast<size_t>(t.rows), columns = static_cast<size_t>(t.columns);
  const auto at = static_cast<size_t>(r0);
  multiply({.depth = static_cast<size_t>(p.width),
            .a = s.q + at * s.q_row,
            .a_row = s.q_row,
            .a_depth = 1,
            .b = s.key_columns,
            .b_row = whole_vectors(t.columns),
            .c = s.scores,
            .c_row = s.scores_row},
           rows, columns);
  TileWords words;
  if (p.random) words.draw(p, s.philox, t, s.words);
  const Keeper keep(p.dropout);
  for (int64_t r = 0; r < t.rows; ++r) {
    float* row = s.scores + static_cast<size_t>(r) * s.scores_row;
    if (!open) mask_row(p, a, t, r, row);
    float& max = s.maxima[r0 + r];
    const float higher = std::max(max, row_max(d, row, columns));
    // If the whole row is masked so far, a shift of 0 gives exp(-inf - 0) = 0.
    const float shift = higher == -std::numeric_limits<float>::infinity() ? 0 : higher;
    const float factor = std::exp(max - shift);
    const float total = row_exp_sum(d, row, columns, shift, row);
    max = higher;
    s.factors[r] = factor;
    s.totals[r0 + r] = s.totals[r0 + r] * factor + total;
    if (!p.random) continue;
    const uint32_t* row_words = words.row(r);
    for (size_t j = 0; j < columns; j += hn::Lanes(d)) {
      hn::StoreU(keep(hn::LoadU(d, row + j), row_words + j), d, row + j);
    }
  }
  multiply({.depth = columns,
            .a = s.scores,
            .a_row = s.scores_row,
            .a_depth = 1,
            .b = s.values,
            .b_row = s.sums_row,
            .c = s.sums + at * s.sums_row,
            .c_row = s.sums_row,
            .old = Old::scale,
            .factors = s.factors},
           rows, static_cast<size_t>(p.value_width));
}

/// Divides a chunk's sums by their totals.
void finish_chunk(const AttentionProblem& p, const Buffers& s, const AttentionResults& to,
                  int64_t b, int64_t h, int64_t first, int64_t rows) {
  const float scale = p.random ? static_cast<float>(p.dropout.scale) : 1.0F;
  for (int64_t r = 0; r < rows; ++r) {
    const float total = s.totals[r];
    float factor = scale / total;
    float* sums = s.sums + static_cast<size_t>(r) * s.sums_row;
    const int64_t row = (b * p.heads + h) * p.queries + first + r;
    to.maxima[row] = s.maxima[r];
    to.sums[row] = total;
    if (!(total > 0)) {  // fully masked, or NaN
      factor = to.sums[row] = std::numeric_limits<float>::quiet_NaN();
      if (p.zero_nan || (p.zero_shut && total == 0)) {
        std::fill_n(sums, s.sums_row, 0.0F);
        factor = 0;
        to.maxima[row] = to.sums[row] = std::numeric_limits<float>::infinity();
      }
    }
    unpack_rows(sums, 1, p.value_width, p.bf16, factor, to.y,
                static_cast<size_t>(p.y.at(b, h) + (first + r) * p.y.row), 0);
  }
}

void pack_keys(const AttentionProblem& p, const AttentionArrays& a, const Buffers& s,
               const Tile& t) {
  pack_rows(a.k, static_cast<size_t>(p.k.at(t.b, t.h) + t.j * p.k.row), p.k.row, t.columns, p.width,
            p.bf16, 1, s.key_rows);
  transpose_tile(s.key_rows, s.q_row, t.columns, p.width, s.key_columns);
  pack_rows(a.v, static_cast<size_t>(p.v.at(t.b, t.h) + t.j * p.v.row), p.v.row, t.columns,
            p.value_width, p.bf16, 1, s.values);
}

/// Processes the tiles that masks do not hide (`last` = false), then the `low` tiles whose rows
/// have no other scores (`last` = true), which is known only after the first pass.
void add_tiles(const AttentionProblem& p, const AttentionArrays& a, const MaskBlocks& masks,
               const Buffers& s, int64_t b, int64_t h, int64_t first, int64_t chunk, bool last) {
  for (int64_t j = 0; j < p.keys; j += kKeyBlock) {
    bool packed = false;
    for (int64_t r0 = 0; r0 < chunk; r0 += kQueryBlock) {
      const Tile t{
          b, h, first + r0, std::min(kQueryBlock, chunk - r0), j, std::min(kKeyBlock, p.keys - j)};
      const TileMask mask = masks.of(t);
      if (mask == TileMask::shut || last != (mask == TileMask::low)) continue;
      if (last && has_other_scores(t, s.maxima + r0)) continue;
      if (!packed) pack_keys(p, a, s, t);
      packed = true;
      add_tile(p, a, s, t, r0, mask == TileMask::open);
    }
  }
}

void attend_chunk(const AttentionProblem& p, const AttentionArrays& a, const MaskBlocks& masks,
                  const Buffers& s, const AttentionResults& to, int64_t b, int64_t h,
                  int64_t first) {
  const int64_t chunk = std::min(kChunk, p.queries - first);
  pack_rows(a.q, static_cast<size_t>(p.q.at(b, h) + first * p.q.row), p.q.row, chunk, p.width,
            p.bf16, p.scale, s.q);
  std::fill_n(s.maxima, chunk, -std::numeric_limits<float>::infinity());
  std::fill_n(s.totals, chunk, 0.0F);
  std::fill_n(s.sums, static_cast<size_t>(chunk) * s.sums_row, 0.0F);
  add_tiles(p, a, masks, s, b, h, first, chunk, false);
  add_tiles(p, a, masks, s, b, h, first, chunk, true);
  finish_chunk(p, s, to, b, h, first, chunk);
}

}  // namespace

size_t attention_scratch(const AttentionProblem& p) { return Buffers(p, nullptr, nullptr).floats; }

/// Processes one chunk of queries; `task` numbers the chunks of all heads. `masks`: see MaskBlocks.
void attend(const AttentionProblem& p, const AttentionArrays& a, const AttentionResults& to,
            const uint8_t* masks, int64_t task, float* scratch) {
  const int64_t chunks = (p.queries + kChunk - 1) / kChunk, pair = task / chunks;
  attend_chunk(p, a, MaskBlocks(p, masks), Buffers(p, a.seed, scratch), to, pair / p.heads,
               pair % p.heads, task % chunks * kChunk);
}

int64_t attention_tasks(const AttentionProblem& p) {
  return p.pairs() * ((p.queries + kChunk - 1) / kChunk);
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(attention_scratch);
HWY_EXPORT(attention_tasks);
HWY_EXPORT(attend);

class Attention final : public Kernel {
 public:
  explicit Attention(const AttentionProblem& p)
      : p_(p),
        tasks_(HWY_DYNAMIC_DISPATCH(attention_tasks)(p)),
        slots_(std::min<int64_t>(tasks_, omp_get_max_threads())),
        slot_floats_(static_cast<int64_t>(HWY_DYNAMIC_DISPATCH(attention_scratch)(p))) {
    scratch_bytes = sizeof(float) * static_cast<size_t>(slots_ * slot_floats_) +
                    static_cast<size_t>(MaskBlocks::bytes(p));
    flops = 2.0 * static_cast<double>(p.pairs() * p.queries * p.keys * (p.width + p.value_width));
  }

  void execute(const KernelArgs& args) const override {
    const AttentionArrays arrays{.q = args.in[0],
                                 .k = args.in[1],
                                 .v = args.in[2],
                                 .bias = p_.bias.present ? args.input<float>(3) : nullptr,
                                 .keep = p_.keep.present ? args.input<uint8_t>(4) : nullptr,
                                 .seed = p_.random ? args.input<int64_t>(5) : nullptr};
    const AttentionResults results{args.out[0], args.output<float>(1), args.output<float>(2)};
    float* const scratch = static_cast<float*>(args.scratch);
    auto* const masks = reinterpret_cast<uint8_t*>(scratch + slots_ * slot_floats_);
    read_masks(p_, arrays, masks);
    std::atomic<int64_t> next{0};  // dynamic: masks make tasks unequal
    parallel_for(slots_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        for (int64_t task = next++; task < tasks_; task = next++) {
          HWY_DYNAMIC_DISPATCH(attend)
          (p_, arrays, results, masks, task, scratch + slot * slot_floats_);
        }
      }
    });
  }

 private:
  AttentionProblem p_;
  int64_t tasks_, slots_, slot_floats_;
};

std::unique_ptr<Kernel> make_attention(const NodeSpec& node, std::string* why_not) {
  const auto problem = read_attention(node, why_not);
  return problem ? std::make_unique<Attention>(*problem) : nullptr;
}

}  // namespace

void register_attention(std::vector<Candidate>& list) {
  list.push_back({"steep.Attention", "tiles", make_attention});
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
