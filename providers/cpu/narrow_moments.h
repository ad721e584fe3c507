// Moments that an optimizer keeps in 16 or 8 bits between steps (data/block_float.h). A kernel
// updates them in float32, a few blocks at a time: numbers and codes pass through the cache once.
// A parameter of bfloat16, and its gradient, are float32 for as long, too.
// New moments are rounded up or down at random, so that changes of less than a unit in the last
// place count on average. The random numbers depend only on seed, run, stream and element.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "data/block_float.h"
#include "providers/cpu/optimizer.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {

/// One moment: bfloat16, or codes of int8 or uint8 with their scales.
struct NarrowMoment {
  DType dtype;
  const void* in;
  const float* scales_in;
  void* out;
  float* scales_out;
};

/// Elements that an update gets at once. A multiple of a block, and of a group of random numbers.
constexpr int64_t kNarrowPart = 4 * kBlockFloats;
constexpr int64_t kNarrowSlack = 256;  ///< elements that vectors write past the end of a part

inline int64_t narrow_parts(int64_t size) { return (size + kNarrowPart - 1) / kNarrowPart; }

/// Reads elements [begin, begin + count). REQUIRES: begin is a multiple of kBlockFloats, and `to`
/// has room for kNarrowSlack more elements.
void widen_moment(const NarrowMoment& moment, int64_t begin, int64_t count, float* to);

/// Writes the same elements. `words`: one for each, of which a `second` moment uses the lower half,
/// and others the upper half. `soon`: as many numbers, which are fetched into the cache meanwhile.
void narrow_moment(const float* from, const uint32_t* words, bool second, int64_t begin,
                   int64_t count, const NarrowMoment& moment, const float* soon);

/// Rounds to nearest even.
void round_to_bf16(const float* from, int64_t count, uint16_t* to);

/// Draws the words of these elements. REQUIRES: begin is a multiple of kNarrowPart, and `words` has
/// room for kNarrowSlack more.
void draw_words(const int64_t* seed, int64_t stream, int64_t begin, int64_t count, uint32_t* words);

/// The moments of a node: first `count` moments as inputs from kFirstState on, then as many scales,
/// which are absent for bfloat16, then the seed. The outputs after the parameter are in that order.
class NarrowMoments {
 public:
  static constexpr size_t kMost = 2;

  /// std::nullopt with the reason if the operands are others.
  static std::optional<NarrowMoments> of(const NodeSpec& node, size_t count, std::string* why_not);

  /// Whether the parameter is float32. Otherwise it is bfloat16.
  bool wide() const { return !bf16_param_; }

  /// The pairs that may share a buffer: parameter, moments, scales.
  std::vector<std::pair<int, int>> shared() const;

  /// The operands of an update of elements [begin, begin + count), counted from 0: inputs and
  /// outputs are the parameter, the gradient and the numbers, then the moments in float32.
  struct Part {
    alignas(64) std::array<std::array<float, kNarrowPart + kNarrowSlack>, kMost> moments;
    alignas(64) std::array<uint32_t, kNarrowPart + kNarrowSlack> words;
    alignas(64) std::array<float, kNarrowPart + kNarrowSlack> param, gradient;  // if bfloat16
    std::array<const void*, StepInputs::kFirstState + kMost + 1> in;
    std::array<void*, 1 + kMost> out;
    int64_t begin, count;

    KernelArgs args() const { return {in.data(), out.data(), nullptr}; }
  };

  /// Calls update(part), which updates parameter and moments, for all parts in parallel.
  template <typename Update>
  void update(const KernelArgs& args, const Update& update) const {
    parallel_for(narrow_parts(size_), 16, [&](int64_t first, int64_t last) {
      Part part;
      for (int64_t i = first; i < last; ++i) {
        read(args, i, part);
        update(part);
        write(args, part);
      }
    });
  }

  /// Fills in the i-th part.
  void read(const KernelArgs& args, int64_t i, Part& part) const;

 private:
  NarrowMoment moment(const KernelArgs& args, size_t i) const;
  void write(const KernelArgs& args, Part& part) const;
  void write_param(const KernelArgs& args, Part& part) const;

  int64_t size_ = 0, stream_ = 0;
  int64_t param_stream_ = 0;  // 0: bfloat16 parameters are rounded to nearest
  bool bf16_param_ = false, bf16_gradient_ = false;
  size_t count_ = 0;
  std::array<DType, kMost> dtypes_{};
};

}  // namespace steep::cpu
