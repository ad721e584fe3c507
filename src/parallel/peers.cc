#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "parallel/describe.h"
#include "runtime/counted.h"
#include "runtime/digest.h"
#include "runtime/utf8.h"
#include "steep/parallel.h"

namespace steep {
namespace {

using Json = nlohmann::json;

constexpr size_t kBucketBytes = 25u << 20;  // of one sum, as DistributedDataParallel's default
/// A tensor of so many bytes is alone: to copy it into a bucket, and back, takes longer than the
/// start of one more exchange.
constexpr size_t kAloneBytes = 1u << 20;

/// Divides tensors of one dtype into lists of at most kBucketBytes.
void for_buckets(std::span<const Tensor> tensors, DType dtype,
                 const std::function<void(std::span<Tensor>)>& visit) {
  std::vector<Tensor> bucket;
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype() != dtype || tensor.size() == 0) continue;
    if (tensor.nbytes() >= kAloneBytes) {
      Tensor alone = tensor;
      visit({&alone, 1});
      continue;
    }
    if (!bucket.empty() && bytes + tensor.nbytes() > kBucketBytes) {
      visit(bucket);
      bucket.clear();
      bytes = 0;
    }
    bucket.push_back(tensor);
    bytes += tensor.nbytes();
  }
  if (!bucket.empty()) visit(bucket);
}

/// Calls f(data, count) with the elements of a bucket in one block, and copies them back.
template <typename T>
void in_one(std::span<Tensor> bucket, const std::function<void(T*, size_t)>& f) {
  if (bucket.size() == 1) {
    return f(static_cast<T*>(bucket[0].data()), bucket[0].nbytes() / sizeof(T));
  }
  size_t bytes = 0;
  for (const Tensor& tensor : bucket) bytes += tensor.nbytes();
  std::vector<T> flat(bytes / sizeof(T));
  char* at = reinterpret_cast<char*>(flat.data());
  for (const Tensor& tensor : bucket) {
    std::memcpy(at, tensor.data(), tensor.nbytes());
    at += tensor.nbytes();
  }
  f(flat.data(), flat.size());
  at = reinterpret_cast<char*>(flat.data());
  for (Tensor& tensor : bucket) {
    std::memcpy(tensor.data(), at, tensor.nbytes());
    at += tensor.nbytes();
  }
}

template <typename T>
void scale(T* values, size_t count, double factor) {
  if (factor == 1) return;
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] * factor);
}

template <typename E>
bool is(const std::exception& error) {
  return dynamic_cast<const E*>(&error) != nullptr;
}

/// The class of an error as text; "" if it is not Steep's.
std::string kind_of(const std::exception& error) {
  if (is<ModelError>(error)) return "ModelError";
  if (is<ShapeError>(error)) return "ShapeError";
  if (is<DataError>(error)) return "DataError";
  if (is<CheckpointError>(error)) return "CheckpointError";
  if (is<OutOfMemoryError>(error)) return "OutOfMemoryError";
  if (is<IoError>(error)) return "IoError";
  if (is<InterruptedError>(error)) return "InterruptedError";
  if (is<InternalError>(error)) return "InternalError";
  return is<ProviderError>(error) ? "ProviderError" : "";
}

[[noreturn]] void throw_as(const std::string& kind, ErrorParts parts) {
  if (kind == "ModelError") throw ModelError(std::move(parts));
  if (kind == "ShapeError") throw ShapeError(std::move(parts));
  if (kind == "DataError") throw DataError(std::move(parts));
  if (kind == "CheckpointError") throw CheckpointError(std::move(parts));
  if (kind == "OutOfMemoryError") throw OutOfMemoryError(std::move(parts));
  if (kind == "IoError") throw IoError(std::move(parts));
  if (kind == "InterruptedError") throw InterruptedError(std::move(parts));
  if (kind == "InternalError") throw InternalError(std::move(parts));
  throw ProviderError(std::move(parts));
}

std::string to_text(const std::string& kind, const ErrorParts& parts) {
  return Json{{"kind", as_utf8(kind)},
              {"text", as_utf8(parts.what)},
              {"op", as_utf8(parts.op)},
              {"expected", as_utf8(parts.expected)},
              {"received", as_utf8(parts.received)},
              {"remedy", as_utf8(parts.remedy)}}
      .dump();
}

/// `call`: where the processes learn of it.
[[noreturn]] void throw_failure_of(size_t rank, const std::string& text, const std::string& call) {
  const Json failure = Json::parse(text, nullptr, false);
  const auto part = [&](const char* name) {
    const auto found = failure.is_object() ? failure.find(name) : failure.end();
    return found != failure.end() && found->is_string() ? found->get<std::string>() : "";
  };
  std::string received = part("kind").empty() ? "" : part("kind") + ": ";
  received += part("text");
  if (!part("received").empty()) received += " (" + part("received") + ")";
  throw_as(part("kind"), {.what = fmt::format("Rank {} failed{}.", rank,
                                              call == kUpdateCall ? " in the update of the weights"
                                                                  : "; no weight was changed"),
                          .node = fmt::format("rank {}", rank),
                          .op = part("op"),
                          .expected = part("expected"),
                          .received = received,
                          .remedy = part("remedy")});
}

}  // namespace

bool Peers::is_forked() const { return process_ != ::getpid(); }

void Peers::together(const char* op, const std::function<void()>& f) {
  if (is_forked()) {
    throw ProviderError({.what = "A process that was forked cannot communicate with the others.",
                         .op = op,
                         .expected = "the process that made the connections",
                         .remedy = "Start processes by spawn, or connect after the fork."});
  }
  if (!failure_.empty()) {
    throw PeerLostError(
        ErrorParts{.what = "The connection between the processes was lost.",
                   .node = fmt::format("rank {}", rank()),
                   .op = op,
                   .received = failure_,
                   .remedy = "Start all processes again, from the last checkpoint."});
  }
  failure_ = "an exchange that was interrupted";
  try {
    f();
  } catch (const std::exception& error) {
    failure_ = as_utf8(error.what());
    failure_ = failure_.substr(0, failure_.find('\n'));
    const Loss loss = find_lost();
    const bool known = loss.rank >= 0;
    if (known) failure_ = fmt::format("rank {} {}", loss.rank, loss.how);
    throw PeerLostError(
        ErrorParts{.what = "Another process of this training ended or cannot be reached.",
                   .node = fmt::format("rank {}", known ? loss.rank : rank()),
                   .op = op,
                   .expected = counted(size(), "process"),
                   .received = failure_,
                   .remedy = "Look at the output of the other processes for the cause; then start "
                             "all again, from the last checkpoint."});
  }
  failure_.clear();
}

std::vector<std::vector<double>> Peers::gather(std::span<const double> numbers) {
  const size_t count = numbers.size();
  std::vector<double> every(count * static_cast<size_t>(size()));
  together("gather", [&] { gather_bytes(numbers.data(), every.data(), count * sizeof(double)); });
  std::vector<std::vector<double>> result;
  for (auto at = every.begin(); at != every.end(); at += static_cast<ptrdiff_t>(count)) {
    result.emplace_back(at, at + static_cast<ptrdiff_t>(count));
  }
  return result;
}

std::vector<std::string> Peers::gather_texts(const std::string& text) {
  const double own = static_cast<double>(text.size());
  size_t most = 1;
  const std::vector<std::vector<double>> extents = gather({&own, 1});
  for (const auto& extent : extents) most = std::max(most, static_cast<size_t>(extent[0]));
  std::string padded = text;
  padded.resize(most);
  std::string every(most * extents.size(), '\0');
  together("gather", [&] { gather_bytes(padded.data(), every.data(), most); });
  std::vector<std::string> result;
  for (size_t i = 0; i < extents.size(); ++i) {
    result.push_back(every.substr(i * most, static_cast<size_t>(extents[i][0])));
  }
  return result;
}

void Peers::add(std::span<const Tensor> tensors, double factor, DType wire) {
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype() == DType::f32 || tensor.dtype() == DType::f64) continue;
    throw InternalError("Only float32 and float64 are summed over processes.");
  }
  const auto add_all = [&]<typename T>(DType dtype, T) {
    for_buckets(tensors, dtype, [&](std::span<Tensor> bucket) {
      together("sum of gradients", [&] {
        in_one<T>(bucket, [&](T* values, size_t count) {
          scale(values, count, factor);
          sum(values, count);
        });
      });
    });
  };
  if (wire == DType::bf16) {
    add_narrow(tensors, factor);
  } else {
    add_all(DType::f32, 0.0F);
  }
  add_all(DType::f64, 0.0);
}

void Peers::copy_from(int from, std::span<const Tensor> tensors) {
  std::vector<DType> dtypes;
  for (const Tensor& tensor : tensors) {
    if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype()) == dtypes.end()) {
      dtypes.push_back(tensor.dtype());
    }
  }
  for (const DType dtype : dtypes) {
    for_buckets(tensors, dtype, [&](std::span<Tensor> bucket) {
      together("copy of states", [&] {
        in_one<char>(bucket, [&](char* bytes, size_t count) { broadcast(bytes, count, from); });
      });
    });
  }
}

std::vector<std::vector<double>> Peers::agree(const std::string& call,
                                              std::span<const double> own) {
  if (own.size() > kNumbers) throw InternalError("Too many numbers for one exchange.");
  std::array<double, kNumbers + 2> numbers{0.0, digest_of(call)};
  std::copy(own.begin(), own.end(), numbers.begin() + 2);
  failed_together_ = false;
  ++agreements_;
  std::vector<std::vector<double>> every = gather(numbers);
  const auto failed = [](const std::vector<double>& of) { return of[0] != 0; };
  if (std::any_of(every.begin(), every.end(), failed)) {
    const std::vector<std::string> failures = gather_texts("");
    failed_together_ = true;
    for (size_t i = 0; i < failures.size(); ++i) {
      if (!failures[i].empty()) throw_failure_of(i, failures[i], call);
    }
  }
  const auto elsewhere = [&](const std::vector<double>& of) { return of[1] != every[0][1]; };
  if (const auto other = std::find_if(every.begin(), every.end(), elsewhere);
      other != every.end()) {
    const std::vector<std::string> calls = gather_texts(call);
    failed_together_ = true;
    const auto i = static_cast<size_t>(other - every.begin());
    throw ProviderError(
        ErrorParts{.what = "The processes of this training are in different calls.",
                   .node = fmt::format("rank {}", i),
                   .expected = calls[0] + ", as rank 0",
                   .received = calls[i],
                   .remedy = "Make the same calls in the same order on every rank."});
  }
  for (auto& of : every) of = {of.begin() + 2, of.begin() + 2 + static_cast<ptrdiff_t>(own.size())};
  return every;
}

void Peers::tell(const std::exception& error) noexcept {
  try {
    const std::string kind = kind_of(error);
    tell(kind, kind.empty() ? ErrorParts{.what = error.what()}
                            : static_cast<const Error&>(error).parts());
  } catch (...) {  // memory
    tell("", {});
  }
}

void Peers::tell(const std::string& kind, const ErrorParts& parts) noexcept {
  try {
    if (!failure_.empty() || size() == 1) return;
    ++agreements_;
    gather(std::array<double, kNumbers + 2>{1.0});
    gather_texts(to_text(kind, parts));
    failed_together_ = true;
  } catch (...) {  // a process is lost, which the next exchange reports
    return;
  }
}

}  // namespace steep
