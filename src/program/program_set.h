// The common core of sessions and modules: the programs of one owner, and everything that they
// share. The owner decides what the key means, such as a selection of outputs or a pattern of
// gradients.
#pragma once

#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "program/program.h"
#include "runtime/heap.h"
#include "runtime/threads.h"
#include "steep/error.h"

namespace steep {

/// Programs by key. Each is made at its first use, with the same options and on the same states.
/// Only `call_lock` is thread-safe.
template <typename Key>
class ProgramSet {
 public:
  /// Keeps the `most` most recently used programs.
  explicit ProgramSet(ProgramOptions options, size_t most = SIZE_MAX)
      : options_(std::move(options)), most_(most) {
    call_lock.bound_threads(options_.threads);
  }

  /// The lock of the owner's calls, held while another member or a program is in use.
  CallLock call_lock;
  std::map<std::string, Tensor> states{};  ///< by name; set them before their programs are made
  std::set<std::string> offloaded{};       ///< the states that lie in a file; as `states`

  /// The program of `key`. If there is none, it is made from the graph that `make()` returns. The
  /// reference is valid until get() was called for `most` other keys. Throws as Program's
  /// constructor.
  template <typename Make>
  Program& get(const Key& key, Make&& make) {
    for (auto it = programs_.begin(); it != programs_.end(); ++it) {
      if (it->first != key) continue;
      programs_.splice(programs_.begin(), programs_, it);
      return it->second;
    }
    Graph graph = make();
    ProgramOptions options = options_;
    options.memory_limit.offloaded = offloaded_bytes(graph);
    options.memory_limit.held = held_beside(graph);
    for (auto& [other, program] : programs_)  // states may have been added since
      program.set_held_bytes(held_beside(program.graph()), offloaded_bytes(program.graph()));
    Program program(std::move(graph), std::move(options));
    for (const Value state : program.graph().states())
      program.bind_state(state.name(), states.at(state.name()));
    program.set_profiler(profiler_.get());
    programs_.emplace_front(key, std::move(program));
    if (programs_.size() > most_) programs_.pop_back();
    return programs_.front().second;
  }

  /// Removes the program of `key`, and with it its hold on states.
  void erase(const Key& key) {
    programs_.remove_if([&](const auto& entry) { return entry.first == key; });
  }

  /// Returns the memory that is kept for the next runs to the system.
  void release_memory() {
    for (auto& [key, program] : programs_) program.release_memory();
    trim_heap();
  }

  const ProgramOptions& options() const { return options_; }
  size_t size() const { return programs_.size(); }
  /// The most memory that states and runs took so far, for programs that run at the same time.
  size_t peak_bytes() const {
    size_t bytes = state_bytes();
    for (const auto& [key, program] : programs_) bytes += program.peak_bytes();
    return bytes;
  }
  /// The bytes of states in memory.
  size_t state_bytes() const {
    size_t bytes = 0;
    for (const auto& [name, tensor] : states)
      bytes += offloaded.count(name) == 0 ? tensor.nbytes() : 0;
    return bytes;
  }

  /// Records all runs from now on.
  void start_profile() { watch(std::make_unique<Profiler>()); }
  /// Adds an exchange to the recorded events, if any are recorded.
  void record(const Exchange& exchange) {
    if (profiler_) profiler_->add(exchange);
  }
  /// Stops recording and writes the events. Throws DataError unless it was started, IoError.
  void write_profile(const std::filesystem::path& path) {
    recorded().write(path.string());
    watch(nullptr);
  }
  /// Stops recording and returns what write_profile() writes. Throws DataError unless it was
  /// started.
  std::string end_profile() {
    std::string events = recorded().to_json();
    watch(nullptr);
    return events;
  }

 private:
  /// Bytes of the graph's states that lie in a file.
  size_t offloaded_bytes(const Graph& graph) const {
    size_t bytes = 0;
    for (const Value state : graph.states())
      bytes += offloaded.count(state.name()) == 0 ? 0 : states.at(state.name()).nbytes();
    return bytes;
  }
  /// Bytes in memory of the states that the graph does not use.
  size_t held_beside(const Graph& graph) const {
    size_t used = 0;
    for (const Value state : graph.states())
      used += offloaded.count(state.name()) == 0 ? states.at(state.name()).nbytes() : 0;
    return state_bytes() - used;
  }
  Profiler& recorded() const {
    if (profiler_) return *profiler_;
    throw DataError({.what = "Nothing was recorded.", .remedy = "Call start_profile() first."});
  }
  void watch(std::unique_ptr<Profiler> profiler) {
    for (auto& [key, program] : programs_) program.set_profiler(profiler.get());
    profiler_ = std::move(profiler);
  }

  ProgramOptions options_;
  size_t most_;
  std::list<std::pair<Key, Program>> programs_{};  // most recently used first
  std::unique_ptr<Profiler> profiler_{};
};

}  // namespace steep
