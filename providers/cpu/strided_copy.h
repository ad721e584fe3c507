// Copies elements between two strided views with equal extents. Every data movement op (transpose,
// slice, concat, expand, tile, pad, …) is one or more such copies, planned once.
#pragma once

#include "steep/tensor.h"

namespace steep::cpu {

/// Immutable after construction; several threads may call run() at once.
class StridedCopy {
 public:
  /// `strides` in elements, one per axis; at most 64 axes. A source stride of 0 broadcasts;
  /// destination elements must be distinct.
  StridedCopy(size_t element_bytes, const Dims& dims, const Dims& src_strides,
              const Dims& dst_strides);

  /// `src` and `dst` point at element (0, …, 0) of their views, which must not overlap.
  void run(const void* src, void* dst) const;

  int64_t bytes() const { return count_ * static_cast<int64_t>(element_); }

 private:
  struct Axis {
    int64_t extent, src, dst;  // strides in bytes
  };
  /// How the innermost one or two axes are copied.
  enum class Inner { bytes, elements, transpose };

  void check_rank() const;
  template <size_t kBytes>
  void run_elements(const char* src, char* dst) const;
  template <size_t kBytes>
  void run_transpose(const char* src, char* dst) const;
  void run_bytes(const char* src, char* dst) const;
  template <typename F>
  void for_each_outer(const char* src, char* dst, F&& inner) const;

  size_t element_;  // bytes copied at once
  int64_t count_ = 0;
  std::vector<Axis> outer_{};
  Axis row_{1, 0, 0};     // contiguous in the source (transpose only)
  Axis column_{1, 0, 0};  // the innermost axis of the destination
  Inner inner_ = Inner::bytes;
};

/// Copies `bytes` in parallel.
void copy_bytes(const void* src, void* dst, int64_t bytes);

}  // namespace steep::cpu
