// Exchanges of tensors each of which one process owns.
#include <algorithm>
#include <cstring>
#include <vector>

#include "steep/parallel.h"

namespace steep {
namespace {

constexpr size_t kMessageBytes = 4u << 20;  // a multiple of every element's size

size_t bytes_of(std::span<const Tensor> tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

/// Calls visit(data, at, bytes) for each tensor's part of the bytes [begin, begin + count) of all
/// tensors one after the other; `at` counts from `begin`.
template <typename F>
void for_range(std::span<const Tensor> tensors, size_t begin, size_t count, F&& visit) {
  size_t start = 0;  // of the tensor
  for (const Tensor& tensor : tensors) {
    const size_t end = start + tensor.nbytes();
    const size_t from = std::max(begin, start), to = std::min(begin + count, end);
    if (from < to) {
      visit(static_cast<char*>(const_cast<void*>(static_cast<const void*>(tensor.data()))) +
                (from - start),
            from - begin, to - from);
    }
    start = end;
  }
}

template <typename T>
void add_values(char* to, const char* from, size_t bytes) {
  auto* sums = reinterpret_cast<T*>(to);
  const auto* values = reinterpret_cast<const T*>(from);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) sums[i] += values[i];
}

template <typename T>
void scale_values(const Tensor& tensor, double factor) {
  auto* values = const_cast<T*>(tensor.data<T>());
  for (int64_t i = 0; i < tensor.size(); ++i) values[i] = static_cast<T>(values[i] * factor);
}

std::vector<Tensor> of_dtype(std::span<const Tensor> tensors, DType dtype) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype() == dtype) result.push_back(tensor);
  }
  return result;
}

}  // namespace

void Peers::exchange(const void* /*out*/, size_t /*out_bytes*/, int /*to*/, void* /*in*/,
                     size_t /*in_bytes*/, int /*from*/) {
  throw InternalError("These processes have no exchange().");
}

/// Sends the bytes of `out`, and receives those of `in`: they replace it, or, with `adds`, are
/// added to it (all tensors then have one dtype).
void Peers::send_parts(const char* op, std::span<const Tensor> out, int to,
                       std::span<const Tensor> in, int from, bool adds) {
  const size_t sends = bytes_of(out), receives = bytes_of(in);
  const bool wide = !in.empty() && in[0].dtype() == DType::f64;
  std::vector<char> sent(std::min(sends, kMessageBytes)),
      received(std::min(receives, kMessageBytes));
  for (size_t at = 0; at < std::max(sends, receives); at += kMessageBytes) {
    const size_t more = at < sends ? std::min(kMessageBytes, sends - at) : 0;
    const size_t less = at < receives ? std::min(kMessageBytes, receives - at) : 0;
    for_range(out, at, more, [&](const char* data, size_t where, size_t bytes) {
      std::memcpy(sent.data() + where, data, bytes);
    });
    together(op, [&] { exchange(sent.data(), more, to, received.data(), less, from); });
    for_range(in, at, less, [&](char* data, size_t where, size_t bytes) {
      if (!adds) {
        std::memcpy(data, received.data() + where, bytes);
      } else {
        (wide ? add_values<double> : add_values<float>)(data, received.data() + where, bytes);
      }
    });
  }
}

void Peers::add_to_owners(const Owned& owned, double factor) {
  const auto ranks = static_cast<int>(owned.size());
  for (const std::vector<Tensor>& of : owned) {
    for (const Tensor& tensor : of) {
      if (tensor.dtype() != DType::f32 && tensor.dtype() != DType::f64) {
        throw InternalError("Only float32 and float64 are summed over processes.");
      }
      if (factor == 1) continue;
      tensor.dtype() == DType::f64 ? scale_values<double>(tensor, factor)
                                   : scale_values<float>(tensor, factor);
    }
  }
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::vector<Tensor> own = of_dtype(owned[static_cast<size_t>(rank())], dtype);
    for (int step = 1; step < ranks; ++step) {
      const int to = (rank() + step) % ranks, from = (rank() + ranks - step) % ranks;
      send_parts("sum of gradients", of_dtype(owned[static_cast<size_t>(to)], dtype), to, own, from,
                 true);
    }
  }
}

void Peers::copy_from_owners(const Owned& owned) {
  // Around a ring, so that all processes send about as much, whatever they own.
  const auto ranks = static_cast<int>(owned.size());
  const int next = (rank() + 1) % ranks, before = (rank() + ranks - 1) % ranks;
  for (int step = 0; step + 1 < ranks; ++step) {
    const int sent = (rank() + ranks - step) % ranks, received = (before + ranks - step) % ranks;
    send_parts("copy of weights", owned[static_cast<size_t>(sent)], next,
               owned[static_cast<size_t>(received)], before, false);
  }
}

void Peers::copy_to_first(const Owned& owned) {
  for (int from = 1; from < static_cast<int>(owned.size()); ++from) {
    const std::vector<Tensor>& of = owned[static_cast<size_t>(from)];
    if (rank() == 0) send_parts("copy of states", {}, from, of, from, false);
    if (rank() == from) send_parts("copy of states", of, 0, {}, 0, false);
  }
}

}  // namespace steep
