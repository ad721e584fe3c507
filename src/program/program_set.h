// The run core of sessions and modules: the programs of one owner with all that they share. The
// owner decides what the key means, such as a choice of outputs or a pattern of gradients.
#pragma once

#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "program/engine.h"
#include "runtime/threads.h"
#include "steep/error.h"

namespace steep {

/// Programs by key, made when first needed, with the same options and on the same states. Nothing
/// but `turn` may be used by two threads at once.
template <typename Key>
class ProgramSet {
 public:
  /// Keeps so many programs, those used last.
  explicit ProgramSet(ProgramOptions options, size_t most = SIZE_MAX)
      : options_(std::move(options)), most_(most) {}

  Turn turn;  ///< of the owner's calls: held while anything else here, or a program, is in use
  std::map<std::string, Tensor> states{};  ///< by name; to be there before their programs are

  /// The program of `key`; if there is none, of the graph that `make()` returns. Valid until as
  /// many others were asked for as are kept. Throws as Program's constructor does.
  template <typename Make>
  Program& get(const Key& key, Make&& make) {
    for (auto it = programs_.begin(); it != programs_.end(); ++it) {
      if (it->first != key) continue;
      programs_.splice(programs_.begin(), programs_, it);
      return it->second;
    }
    Graph graph = make();
    ProgramOptions options = options_;
    options.memory_limit.held = held_beside(graph);
    for (auto& [other, program] : programs_)  // there may be more states by now
      program.set_held_bytes(held_beside(program.graph()));
    Program made(std::move(graph), std::move(options));
    for (const Value state : made.graph().states())
      made.bind_state(state.name(), states.at(state.name()));
    made.set_profiler(profiler_.get());
    programs_.emplace_front(key, std::move(made));
    if (programs_.size() > most_) programs_.pop_back();
    return programs_.front().second;
  }

  const ProgramOptions& options() const { return options_; }
  size_t size() const { return programs_.size(); }
  /// The most that states and runs took so far, where programs ran at the same time.
  size_t peak_bytes() const {
    size_t bytes = state_bytes();
    for (const auto& [key, program] : programs_) bytes += program.peak_bytes();
    return bytes;
  }
  size_t state_bytes() const {
    size_t bytes = 0;
    for (const auto& [name, tensor] : states) bytes += tensor.nbytes();
    return bytes;
  }

  /// Records all runs, from now on.
  void start_profile() { watch(std::make_unique<Profiler>()); }
  /// Ends it. Throws DataError when it was not started, IoError.
  void write_profile(const std::filesystem::path& path) {
    recorded().write(path.string());
    watch(nullptr);
  }
  /// Ends it, and returns what write_profile() writes. Throws DataError when it was not started.
  std::string end_profile() {
    std::string events = recorded().to_json();
    watch(nullptr);
    return events;
  }

 private:
  /// Bytes of states that the graph does not have.
  size_t held_beside(const Graph& graph) const {
    size_t bytes = state_bytes();
    for (const Value state : graph.states()) bytes -= states.at(state.name()).nbytes();
    return bytes;
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
