// steep_peers_… and steep_parallel_…: Peers and DataParallel.
#include "steep/parallel.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "c_api/arrays.h"
#include "c_api/call.h"
#include "c_api/options.h"
#include "c_api/training.h"
#include "parallel/describe.h"
#include "runtime/digest.h"

namespace steep::c_api {
namespace {

class Processes : public Object {
 public:
  static constexpr std::string_view kKind = "steep_peers";
  explicit Processes(std::shared_ptr<steep::Peers> connected) : peers(std::move(connected)) {}
  std::string_view kind() const override { return kKind; }

  const std::shared_ptr<steep::Peers> peers;
  std::atomic<bool> busy = false;
};

/// While it lives, no other call exchanges anything with these processes. Not a lock: calls that
/// waited for each other could not have the same order in all processes, and an interrupt check
/// that made one would wait for itself. Throws ArgumentError.
class Alone {
 public:
  explicit Alone(Processes& processes) : busy_(processes.busy) {
    if (!busy_.exchange(true)) return;
    throw ArgumentError({.what = "Two calls use the same processes at the same time.",
                         .node = "steep_peers",
                         .expected = "one call after the other, in one thread",
                         .received = "a call while another one runs"});
  }
  ~Alone() { busy_ = false; }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  std::atomic<bool>& busy_;
};

class Parallel : public Object {
 public:
  static constexpr std::string_view kKind = "steep_parallel";
  Parallel(std::shared_ptr<Training> training, std::shared_ptr<Processes> connected,
           ParallelOptions options)
      : session(std::move(training)),
        processes(std::move(connected)),
        parallel(session->session, processes->peers, std::move(options.facts), options.zero,
                 options.wire_precision) {}
  std::string_view kind() const override { return kKind; }

  /// Tells the other processes of an error outside of DataParallel's calls.
  void tell(const std::exception& error) {
    parallel.drop_gradients();
    processes->peers->tell(error);
  }

  const std::shared_ptr<Training> session;
  const std::shared_ptr<Processes> processes;
  DataParallel parallel;
};

/// Runs work(object) for a handle of the Object `Handle`, alone.
template <typename Work>
steep_code call_alone(const steep_peers* handle, steep_error** error, Work&& work) {
  return call(error, [&] {
    const auto own = object<Processes>(handle);
    const Alone alone(*own);
    work(*own->peers);
  });
}

template <typename Work>
steep_code call_alone(const steep_parallel* handle, steep_error** error, Work&& work) {
  return call(error, [&] {
    const auto own = object<Parallel>(handle);
    const Alone alone(*own->processes);
    work(*own);
  });
}

/// What check() returns. An error in the arguments of this process is one of all: otherwise the
/// others would take its next call for this one.
template <typename Check>
auto checked(Peers& peers, Check&& check) {
  try {
    return check();
  } catch (const std::exception& error) {
    peers.tell(error);
    throw;
  }
}

/// The arrays of this process, once all processes have found that theirs have the same types. An
/// error of one is one of all. `call` and `text` must be the same everywhere, too.
std::vector<Tensor> agreed(Peers& peers, const char* call, const steep_array* arrays, size_t count,
                           const std::string& text,
                           const std::function<void(const Tensor&)>& check = {}) {
  std::string types = text;
  const std::vector<Tensor> tensors = checked(peers, [&] {
    std::vector<Tensor> own = Feed(arrays, count).tensors();
    for (const Tensor& tensor : own) {
      if (check) check(tensor);
      types += fmt::format("; {} {}", name_of(tensor.dtype()), to_string(tensor.dims()));
    }
    return own;
  });
  const double own = digest_of(types);
  const std::vector<std::vector<double>> every = peers.agree(call, {&own, 1});
  for (size_t rank = 0; rank < every.size(); ++rank) {
    if (every[rank] == every[0]) continue;
    const std::vector<std::string> texts = peers.gather_texts(types);
    throw ShapeError({.what = "The processes pass arrays of different types.",
                      .node = fmt::format("rank {}", rank),
                      .expected = texts[0] + ", as rank 0",
                      .received = texts[rank]});
  }
  return tensors;
}

void require_float(const Tensor& tensor) {
  if (tensor.dtype() == DType::f32 || tensor.dtype() == DType::f64) return;
  throw ShapeError({.what = "Only float32 and float64 are summed over processes.",
                    .expected = "float32 or float64",
                    .received = std::string(name_of(tensor.dtype()))});
}

void require_rank(int32_t rank, int size) {
  if (rank >= 0 && rank < size) return;
  throw ArgumentError({.what = "There is no such process.",
                       .node = "rank",
                       .expected = fmt::format("0 to {}", size - 1),
                       .received = std::to_string(rank)});
}

/// The rows of this process, in the order of the session's inputs; nothing for one without rows.
std::vector<Tensor> ordered(const Parallel& own, const Feed& feed) {
  if (feed.tensors().empty()) return {};
  return feed.ordered(own.session->inputs.infos());
}

/// The same; all processes learn of an error. Not where parts wait: step() is an error of each
/// then.
std::vector<Tensor> told(Parallel& own, const steep_array* inputs, size_t count,
                         std::optional<Feed>& feed, const std::function<void()>& check = {}) {
  try {
    if (check) check();
    feed.emplace(inputs, count);
    return ordered(own, *feed);
  } catch (const std::exception& error) {
    if (own.parallel.accumulated() == 0) own.tell(error);
    throw;
  }
}

void give_step(steep_step* step, steep_tensors** outputs, const Parallel& own,
               const StepResult& result, const Feed& feed) {
  const bool none = result.outputs.empty();  // without rows
  give_tensors(outputs, none ? std::vector<std::string>() : own.session->step_outputs,
               result.outputs, feed);
  put_step(step, result);
}

[[noreturn]] void throw_no_code(int32_t code) {
  throw ArgumentError({.what = "There is no such error.",
                       .node = "code",
                       .expected = "a steep_code other than STEEP_OK",
                       .received = std::to_string(code)});
}

}  // namespace
}  // namespace steep::c_api

using namespace steep::c_api;  // NOLINT: functions of C are in no namespace

extern "C" {

// --- processes ----------------------------------------------------------------------------------

steep_code steep_peers_connect(const char* way, steep_peers** peers, steep_error** error) {
  return call(error, [&] {
    require(peers, "peers");
    give(peers, std::make_shared<Processes>(steep::connect(text(way, "way"))));
  });
}

steep_code steep_peers_free(steep_peers* peers) { return release<Processes>(peers); }

steep_code steep_peers_place(const steep_peers* peers, int32_t* rank, int32_t* size,
                             steep_error** error) {
  return call(error, [&] {
    const auto own = object<Processes>(peers);
    if (rank != nullptr) *rank = own->peers->rank();
    if (size != nullptr) *size = own->peers->size();
  });
}

steep_code steep_peers_sent_bytes(const steep_peers* peers, uint64_t* bytes, steep_error** error) {
  return call_alone(peers, error, [&](steep::Peers& own) {
    require(bytes, "bytes");
    const std::optional<uint64_t> sent = own.sent_bytes();
    if (!sent) {
      throw steep::ProviderError(
          {.what = "This way to communicate does not count what it sends.", .expected = "gloo"});
    }
    *bytes = *sent;
  });
}

steep_code steep_peers_gather(steep_peers* peers, const steep_array* array, steep_tensors** every,
                              steep_error** error) {
  return call_alone(peers, error, [&](steep::Peers& own) {
    checked(own, [&] {
      require(array, "array");
      require(every, "every");
    });
    const steep::Tensor tensor = agreed(own, "steep_peers_gather", array, 1, "")[0];
    const std::string bytes(static_cast<const char*>(tensor.data()), tensor.nbytes());
    Tensors::Items items;
    for (const std::string& of : own.gather_texts(bytes)) {
      steep::Tensor result = steep::Tensor::empty(tensor.dtype(), tensor.dims());
      if (!of.empty()) std::memcpy(result.data(), of.data(), of.size());
      items.emplace_back("", std::move(result));
    }
    give(every, std::make_shared<Tensors>(std::move(items)));
  });
}

steep_code steep_peers_gather_text(steep_peers* peers, const char* text, steep_strings** every,
                                   steep_error** error) {
  return call_alone(peers, error, [&](steep::Peers& own) {
    const std::string contents = checked(own, [&] {
      require(every, "every");
      return steep::c_api::text(text, "text");
    });
    own.agree("steep_peers_gather_text", {});
    give_strings(every, own.gather_texts(contents));
  });
}

steep_code steep_peers_add(steep_peers* peers, const steep_array* arrays, size_t count,
                           double factor, const char* wire_precision, steep_error** error) {
  return call_alone(peers, error, [&](steep::Peers& own) {
    const steep::DType wire = checked(own, [&] {
      return steep::wire_dtype(wire_precision == nullptr ? "float32" : wire_precision);
    });
    const std::vector<steep::Tensor> tensors =
        agreed(own, "steep_peers_add", arrays, count, std::string(name_of(wire)), require_float);
    own.add(tensors, factor, wire);
  });
}

steep_code steep_peers_copy_from(steep_peers* peers, int32_t rank, const steep_array* arrays,
                                 size_t count, steep_error** error) {
  return call_alone(peers, error, [&](steep::Peers& own) {
    checked(own, [&] { require_rank(rank, own.size()); });
    const std::string from = fmt::format("from rank {}", rank);
    own.copy_from(rank, agreed(own, "steep_peers_copy_from", arrays, count, from));
  });
}

steep_code steep_file_hash(const char* path, steep_bytes** hash, steep_error** error) {
  return call(error, [&] {
    require(hash, "hash");
    give_bytes(hash, steep::hash_of_file(text(path, "path")));
  });
}

// --- training -----------------------------------------------------------------------------------

steep_code steep_parallel_new(steep_training* session, steep_peers* peers,
                              const steep_options* options, steep_parallel** parallel,
                              steep_error** error) {
  return call(error, [&] {
    require(parallel, "parallel");
    const auto training = session_of(session);
    const auto processes = object<Processes>(peers);
    const Alone alone(*processes);
    give(parallel, std::make_shared<Parallel>(training, processes,
                                              options_or_defaults<ParallelOptions>(options)));
  });
}

steep_code steep_parallel_free(steep_parallel* parallel) { return release<Parallel>(parallel); }

steep_code steep_parallel_step(steep_parallel* parallel, const steep_array* inputs, size_t count,
                               steep_step* step, steep_tensors** outputs, steep_error** error) {
  return call_alone(parallel, error, [&](Parallel& own) {
    std::optional<Feed> feed;
    const steep::StepResult result = own.parallel.step(told(own, inputs, count, feed));
    give_step(step, outputs, own, result, *feed);
  });
}

steep_code steep_parallel_step_if_any(steep_parallel* parallel, const steep_array* inputs,
                                      size_t count, int32_t* updated, steep_step* step,
                                      steep_tensors** outputs, steep_error** error) {
  return call_alone(parallel, error, [&](Parallel& own) {
    std::optional<Feed> feed;
    const auto check = [&] { require(updated, "updated"); };
    const auto result = own.parallel.step_if_any(told(own, inputs, count, feed, check));
    *updated = result.has_value();
    if (result) give_step(step, outputs, own, *result, *feed);
  });
}

steep_code steep_parallel_accumulate(steep_parallel* parallel, const steep_array* inputs,
                                     size_t count, int64_t rows, steep_step* step,
                                     steep_tensors** outputs, steep_error** error) {
  return call_alone(parallel, error, [&](Parallel& own) {
    std::optional<Feed> feed;
    const auto read = [&] {
      feed.emplace(inputs, count);
      return ordered(own, *feed);
    };
    const steep::StepResult result = own.parallel.accumulate_reading(read, rows);
    give_step(step, outputs, own, result, *feed);
  });
}

steep_code steep_parallel_apply_gradients(steep_parallel* parallel, steep_step* step,
                                          steep_error** error) {
  return call_alone(parallel, error,
                    [&](Parallel& own) { put_step(step, own.parallel.apply_gradients()); });
}

steep_code steep_parallel_apply_if_any(steep_parallel* parallel, int32_t* updated, steep_step* step,
                                       steep_error** error) {
  return call_alone(parallel, error, [&](Parallel& own) {
    require(updated, "updated");
    const std::optional<steep::StepResult> result = own.parallel.apply_if_any();
    *updated = result.has_value();
    if (result) put_step(step, *result);
  });
}

steep_code steep_parallel_accumulated(const steep_parallel* parallel, int64_t* parts,
                                      steep_error** error) {
  return call_alone(parallel, error, [&](Parallel& own) {
    require(parts, "parts");
    *parts = own.parallel.accumulated();
  });
}

steep_code steep_parallel_drop_gradients(steep_parallel* parallel, steep_error** error) {
  return call_alone(parallel, error, [](Parallel& own) { own.parallel.drop_gradients(); });
}

steep_code steep_parallel_fail(steep_parallel* parallel, int32_t code, const char* what,
                               steep_error** error) {
  return call_alone(parallel, error, [&](Parallel& own) {
    const std::string name = steep_code_name(code);
    if (code == STEEP_OK || name.empty()) throw_no_code(code);
    const std::string said = text(what, "what");
    own.parallel.drop_gradients();
    own.processes->peers->tell(name, {.what = said});
  });
}

steep_code steep_parallel_refresh(steep_parallel* parallel, steep_error** error) {
  return call_alone(parallel, error, [](Parallel& own) { own.parallel.refresh(); });
}

steep_code steep_parallel_loaded(steep_parallel* parallel, steep_error** error) {
  return call_alone(parallel, error, [](Parallel& own) { own.parallel.loaded(); });
}

steep_code steep_parallel_set_loaded(steep_parallel* parallel, const char* text,
                                     steep_error** error) {
  return call_alone(parallel, error, [&](Parallel& own) {
    own.parallel.set_loaded(steep::c_api::text(text, "text"));
    own.parallel.refresh();
  });
}

steep_code steep_parallel_save_checkpoint(steep_parallel* parallel, const char* path,
                                          const char* user, int32_t full, steep_error** error) {
  return call_alone(parallel, error, [&](Parallel& own) {
    own.parallel.save_checkpoint(text(path, "path"), user == nullptr ? "{}" : user, full != 0);
  });
}

steep_code steep_parallel_optimizer_state(steep_parallel* parallel, steep_tensors** state,
                                          steep_error** error) {
  return call_alone(parallel, error, [&](Parallel& own) {
    require(state, "state");
    give_tensors(state, own.parallel.optimizer_state());
  });
}

steep_code steep_parallel_warning(const steep_parallel* parallel, steep_bytes** text,
                                  steep_error** error) {
  return call_alone(parallel, error, [&](Parallel& own) {
    require(text, "text");
    give_bytes(text, own.parallel.warning());
  });
}

}  // extern "C"
