#include "providers/cpu/strided_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "providers/cpu/parallel.h"
#include "steep/error.h"

namespace steep::cpu {
namespace {

constexpr int64_t kParallelBytes = int64_t{128}
                                   << 10;  // less than this is not worth a second thread
constexpr size_t kMaxAxes = 64;
constexpr int64_t kTile = 32;  // edge of a transposed tile: 2 x 4 KiB of f32 in L1

template <size_t kBytes>
void move(const char* src, char* dst) {
  std::memcpy(dst, src, kBytes);
}

// Sixteen bytes as elements of four bytes, and of two.
using Words [[gnu::vector_size(16)]] = uint32_t;
using Halves [[gnu::vector_size(16)]] = uint16_t;

/// Interleaves the first (low) or last (high) halves of two vectors.
Words low(Words a, Words b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
Words high(Words a, Words b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
Halves low(Halves a, Halves b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
Halves high(Halves a, Halves b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

/// dst[c][r] = src[r][c] for a block of 16 bytes by as many rows, whose source columns and
/// destination rows are contiguous.
template <size_t kBytes>
void transpose_block(const char* src, int64_t src_row, char* dst, int64_t dst_row) {
  using Lanes = std::conditional_t<kBytes == 4, Words, Halves>;
  constexpr int kEdge = 16 / kBytes;
  Lanes v[kEdge];
  for (int i = 0; i < kEdge; ++i) std::memcpy(&v[i], src + i * src_row, 16);
  // One perfect shuffle per bit of the index transposes the block.
  for (int rounds = 1; rounds < kEdge; rounds *= 2) {
    Lanes w[kEdge];
    for (int i = 0; i < kEdge / 2; ++i) {
      w[2 * i] = low(v[i], v[i + kEdge / 2]);
      w[2 * i + 1] = high(v[i], v[i + kEdge / 2]);
    }
    std::copy_n(w, kEdge, v);
  }
  for (int i = 0; i < kEdge; ++i) std::memcpy(dst + i * dst_row, &v[i], 16);
}

/// The same for 64 bytes by as many rows. It copies through a buffer, so that every cache line on
/// either side is touched once: rows whose distance is a power of two would evict each other.
template <size_t kBytes>
void transpose_lines(const char* src, int64_t src_row, char* dst, int64_t dst_row) {
  constexpr int64_t kEdge = 16 / kBytes, kLines = 4 * kEdge;
  constexpr auto kSize = static_cast<int64_t>(kBytes);
  alignas(64) char buffer[kLines * 64];
  for (int64_t c = 0; c < kLines; c += kEdge) {
    for (int64_t r = 0; r < kLines; r += kEdge) {
      transpose_block<kBytes>(src + r * kSize + c * src_row, src_row, buffer + r * 64 + c * kSize,
                              64);
    }
  }
  for (int64_t r = 0; r < kLines; ++r) std::memcpy(dst + r * dst_row, buffer + r * 64, 64);
}

}  // namespace

StridedCopy::StridedCopy(size_t element_bytes, const Dims& dims, const Dims& src_strides,
                         const Dims& dst_strides)
    : element_(element_bytes), count_(element_count(dims)) {
  if (count_ == 0) return;
  const auto size = static_cast<int64_t>(element_bytes);
  std::vector<Axis> axes;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != 1) axes.push_back({dims[i], src_strides[i] * size, dst_strides[i] * size});
  }
  // Order the axes by the destination's strides, to write in memory order.
  std::stable_sort(axes.begin(), axes.end(),
                   [](const Axis& a, const Axis& b) { return std::abs(a.dst) > std::abs(b.dst); });
  for (size_t i = 1; i < axes.size();) {
    Axis& a = axes[i - 1];
    const Axis& b = axes[i];
    if (a.src == b.src * b.extent && a.dst == b.dst * b.extent) {
      a = {a.extent * b.extent, b.src, b.dst};
      axes.erase(axes.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  // A contiguous last axis becomes one wider element.
  if (!axes.empty() && axes.back().src == size && axes.back().dst == size) {
    element_ *= static_cast<size_t>(axes.back().extent);
    count_ /= axes.back().extent;
    axes.pop_back();
  }
  if (element_ > 16 || (element_ & (element_ - 1)) != 0) {
    inner_ = Inner::bytes;
    outer_ = std::move(axes);
    check_rank();
    return;
  }
  inner_ = Inner::elements;
  const auto wide = static_cast<int64_t>(element_);
  if (!axes.empty()) {
    column_ = axes.back();
    axes.pop_back();
    if (column_.dst == wide && column_.src != wide && column_.src != 0) {
      auto row =
          std::find_if(axes.begin(), axes.end(), [&](const Axis& a) { return a.src == wide; });
      if (row != axes.end() && row->extent >= 4 && column_.extent >= 4) {
        row_ = *row;
        axes.erase(row);
        inner_ = Inner::transpose;
      }
    }
  }
  outer_ = std::move(axes);
  check_rank();
}

void StridedCopy::check_rank() const {
  if (outer_.size() > kMaxAxes) {
    throw ShapeError({.what = "A tensor has too many axes to be copied.",
                      .expected = fmt::format("at most {} axes", kMaxAxes),
                      .received = fmt::format("{}", outer_.size())});
  }
}

/// Calls inner(src, dst) for the outer indices, divided among threads. If there are few outer
/// indices, callers split the inner axes instead.
template <typename F>
void StridedCopy::for_each_outer(const char* src, char* dst, F&& inner) const {
  int64_t n = 1;
  for (const Axis& a : outer_) n *= a.extent;
  const int64_t bytes_each = bytes() / n;
  parallel_for(n, grain_of(kParallelBytes, bytes_each), [&](int64_t begin, int64_t end) {
    int64_t index[kMaxAxes];
    const size_t rank = outer_.size();
    const char* s = src;
    char* d = dst;
    int64_t rest = begin;
    for (size_t i = rank; i-- > 0;) {
      index[i] = rest % outer_[i].extent;
      rest /= outer_[i].extent;
      s += index[i] * outer_[i].src;
      d += index[i] * outer_[i].dst;
    }
    for (int64_t k = begin; k < end; ++k) {
      inner(s, d);
      for (size_t i = rank; i-- > 0;) {
        s += outer_[i].src;
        d += outer_[i].dst;
        if (++index[i] < outer_[i].extent) break;
        index[i] = 0;
        s -= outer_[i].src * outer_[i].extent;
        d -= outer_[i].dst * outer_[i].extent;
      }
    }
  });
}

void StridedCopy::run_bytes(const char* src, char* dst) const {
  if (static_cast<int64_t>(element_) >= 2 * kParallelBytes) {
    for_each_outer(src, dst, [&](const char* s, char* d) {
      copy_bytes(s, d, static_cast<int64_t>(element_));
    });
    return;
  }
  for_each_outer(src, dst, [&](const char* s, char* d) { std::memcpy(d, s, element_); });
}

template <size_t kBytes>
void StridedCopy::run_elements(const char* src, char* dst) const {
  const Axis column = column_;
  auto range = [&](const char* s, char* d, int64_t begin, int64_t end) {
    if (column.src == 0 && column.dst == kBytes) {  // broadcasts one element
      char element[kBytes];
      move<kBytes>(s, element);
      for (int64_t i = begin; i < end; ++i) move<kBytes>(element, d + i * int64_t{kBytes});
      return;
    }
    for (int64_t i = begin; i < end; ++i) move<kBytes>(s + i * column.src, d + i * column.dst);
  };
  if (outer_.empty()) {
    parallel_for(column.extent, kParallelBytes / int64_t{kBytes},
                 [&](int64_t begin, int64_t end) { range(src, dst, begin, end); });
    return;
  }
  for_each_outer(src, dst, [&](const char* s, char* d) { range(s, d, 0, column.extent); });
}

template <size_t kBytes>
void StridedCopy::run_transpose(const char* src, char* dst) const {
  const Axis row = row_;        // contiguous in src
  const Axis column = column_;  // contiguous in dst
  auto tile = [&](const char* s, char* d, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    int64_t r = r0;
    constexpr auto kSize = static_cast<int64_t>(kBytes);
    if constexpr (kBytes == 4 || kBytes == 2) {
      auto in_squares = [&](int64_t edge, auto&& transpose) {
        for (; r + edge <= r1; r += edge) {
          int64_t c = c0;
          for (; c + edge <= c1; c += edge) {
            transpose(s + r * kSize + c * column.src, column.src, d + r * row.dst + c * kSize,
                      row.dst);
          }
          for (; c < c1; ++c) {
            for (int64_t k = r; k < r + edge; ++k)
              move<kBytes>(s + k * kSize + c * column.src, d + k * row.dst + c * kSize);
          }
        }
      };
      if ((c1 - c0) % (64 / kSize) == 0) in_squares(64 / kSize, transpose_lines<kBytes>);
      in_squares(16 / kSize, transpose_block<kBytes>);
    }
    for (; r < r1; ++r) {
      for (int64_t c = c0; c < c1; ++c) {
        move<kBytes>(s + r * kSize + c * column.src, d + r * row.dst + c * kSize);
      }
    }
  };
  auto rows = [&](const char* s, char* d, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r += kTile) {
      for (int64_t c = 0; c < column.extent; c += kTile) {
        tile(s, d, r, std::min(r + kTile, end), c, std::min(c + kTile, column.extent));
      }
    }
  };
  if (outer_.empty()) {
    const int64_t tiles = (row.extent + kTile - 1) / kTile;
    const int64_t tile_bytes = kTile * column.extent * static_cast<int64_t>(kBytes);
    parallel_for(tiles, grain_of(kParallelBytes, tile_bytes), [&](int64_t begin, int64_t end) {
      rows(src, dst, begin * kTile, std::min(end * kTile, row.extent));
    });
    return;
  }
  for_each_outer(src, dst, [&](const char* s, char* d) { rows(s, d, 0, row.extent); });
}

void StridedCopy::run(const void* src_data, void* dst_data) const {
  if (count_ == 0) return;
  const auto* src = static_cast<const char*>(src_data);
  auto* dst = static_cast<char*>(dst_data);
  if (inner_ == Inner::bytes) return run_bytes(src, dst);
  auto by_size = [&](auto size) {
    if (inner_ == Inner::transpose) {
      run_transpose<size>(src, dst);
    } else {
      run_elements<size>(src, dst);
    }
  };
  switch (element_) {
    case 1: return by_size(std::integral_constant<size_t, 1>{});
    case 2: return by_size(std::integral_constant<size_t, 2>{});
    case 4: return by_size(std::integral_constant<size_t, 4>{});
    case 8: return by_size(std::integral_constant<size_t, 8>{});
    default: return by_size(std::integral_constant<size_t, 16>{});
  }
}

void copy_bytes(const void* src, void* dst, int64_t bytes) {
  parallel_for(bytes, kParallelBytes, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(dst) + begin, static_cast<const char*>(src) + begin,
                static_cast<size_t>(end - begin));
  });
}

}  // namespace steep::cpu
