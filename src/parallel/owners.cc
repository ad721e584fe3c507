// Exchanges of tensors each of which one process owns.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/bfloat16.h"
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

/// Reads and writes float32 numbers as bfloat16.
void narrow(char* to, const char* from, size_t bytes) {
  auto* out = reinterpret_cast<uint16_t*>(to);
  const auto* values = reinterpret_cast<const float*>(from);
  for (size_t i = 0; i < bytes / sizeof(float); ++i) out[i] = to_bfloat16(values[i]);
}
void widen(char* to, const char* from, size_t bytes, bool adds) {
  auto* values = reinterpret_cast<float*>(to);
  const auto* in = reinterpret_cast<const uint16_t*>(from);
  for (size_t i = 0; i < bytes / sizeof(float); ++i) {
    const float value = from_bfloat16(in[i]);
    values[i] = adds ? values[i] + value : value;
  }
}

/// Cuts the elements of all tensors, one after the other, into so many parts of about one size.
Peers::Owned cut(const std::vector<Tensor>& tensors, size_t parts) {
  const size_t count = bytes_of(tensors) / sizeof(float);
  Peers::Owned owned(parts);
  for (size_t i = 0; i < parts; ++i) {
    const size_t begin = count * i / parts, end = count * (i + 1) / parts;
    for_range(tensors, begin * sizeof(float), (end - begin) * sizeof(float),
              [&](char* data, size_t, size_t bytes) {
                const auto elements = static_cast<int64_t>(bytes / sizeof(float));
                owned[i].push_back(Tensor::wrap(DType::f32, {elements}, data, nullptr));
              });
  }
  return owned;
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
/// added to it (all tensors then have one dtype). With `wire` = bf16 all are float32.
void Peers::send_parts(const char* op, std::span<const Tensor> out, int to,
                       std::span<const Tensor> in, int from, bool adds, DType wire) {
  const size_t sends = bytes_of(out), receives = bytes_of(in);
  const bool wide = !in.empty() && in[0].dtype() == DType::f64;
  const size_t shrinks = wire == DType::bf16 ? 2 : 1;
  const size_t most = kMessageBytes * shrinks;  // of the tensors' bytes in one message
  std::vector<char> sent, received;
  together(op, [&] {
    sent.resize(std::min(sends, most) / shrinks);
    received.resize(std::min(receives, most) / shrinks);
  });
  for (size_t at = 0; at < std::max(sends, receives); at += most) {
    const size_t more = at < sends ? std::min(most, sends - at) : 0;
    const size_t less = at < receives ? std::min(most, receives - at) : 0;
    for_range(out, at, more, [&](const char* data, size_t where, size_t bytes) {
      if (shrinks > 1) return narrow(sent.data() + where / shrinks, data, bytes);
      std::memcpy(sent.data() + where, data, bytes);
    });
    together(op, [&] {
      exchange(sent.data(), more / shrinks, to, received.data(), less / shrinks, from);
    });
    for_range(in, at, less, [&](char* data, size_t where, size_t bytes) {
      if (shrinks > 1) {
        widen(data, received.data() + where / shrinks, bytes, adds);
      } else if (!adds) {
        std::memcpy(data, received.data() + where, bytes);
      } else {
        (wide ? add_values<double> : add_values<float>)(data, received.data() + where, bytes);
      }
    });
  }
}

void Peers::add_to_owners(const Owned& owned, double factor, DType wire) {
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
                 true, dtype == DType::f32 ? wire : dtype);
    }
  }
}

void Peers::add_narrow(std::span<const Tensor> tensors, double factor) {
  const Owned parts = cut(of_dtype(tensors, DType::f32), static_cast<size_t>(size()));
  add_to_owners(parts, factor, DType::bf16);
  // What the owner keeps are the numbers that the others receive.
  for (const Tensor& tensor : parts[static_cast<size_t>(rank())]) {
    auto* values = const_cast<float*>(tensor.data<float>());
    for (int64_t i = 0; i < tensor.size(); ++i) values[i] = from_bfloat16(to_bfloat16(values[i]));
  }
  send_around("sum of gradients", parts, DType::bf16);
}

void Peers::copy_from_owners(const Owned& owned) {
  send_around("copy of weights", owned, DType::f32);
}

/// As copy_from_owners().
void Peers::send_around(const char* op, const Owned& owned, DType wire) {
  // Around a ring, so that all processes send about as much, whatever they own.
  const auto ranks = static_cast<int>(owned.size());
  const int next = (rank() + 1) % ranks, before = (rank() + ranks - 1) % ranks;
  for (int step = 0; step + 1 < ranks; ++step) {
    const int sent = (rank() + ranks - step) % ranks, received = (before + ranks - step) % ranks;
    send_parts(op, owned[static_cast<size_t>(sent)], next, owned[static_cast<size_t>(received)],
               before, false, wire);
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
