// Data-parallel training: each process has its own rows, and all make the same update.
//
//   std::shared_ptr<steep::Peers> peers = steep::connect("gloo");
//   steep::TrainingSession session("model.onnx", options);
//   steep::DataParallel parallel(session, peers, {{"model", steep::hash_of_file("model.onnx")}});
//   for (...) parallel.step({x, y});  // x, y: rows of this process
//   if (peers->rank() == 0) session.save_checkpoint("run/checkpoint");
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "steep/error.h"
#include "steep/steep.h"

namespace steep {

/// Another process of the training has ended or does not answer. `node` names it if it is known,
/// `op` the exchange in which that was found.
class PeerLostError : public ProviderError {
 public:
  using ProviderError::ProviderError;
};

/// The processes of a training. All of them make the same calls in the same order. A call throws
/// PeerLostError if a process is lost; from then on all calls do. A call throws ProviderError in a
/// process that was forked from the one that made the connections. Not for several threads.
class Peers {
 public:
  virtual ~Peers() = default;
  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  virtual int rank() const = 0;  ///< of this process, from 0
  virtual int size() const = 0;  ///< number of processes

  /// The numbers of each process, in the order of ranks; all pass equally many.
  std::vector<std::vector<double>> gather(std::span<const double> numbers);
  std::vector<std::string> gather_texts(const std::string& text);
  /// Replaces tensors (float32, float64) by the sum over all processes of tensor times `factor`.
  /// Each process has its own factor. Tensors of 1 MiB and more are exchanged one by one, and
  /// smaller ones in buckets of at most 25 MiB.
  /// `wire` = bf16, if exchanges(): float32 numbers are sent as bfloat16, half the bytes. Each is
  /// rounded once, added up in float32 by one process, and the sum is rounded once: all processes
  /// get the same bits, which differ from the sum by at most 2^-7 times the sum of the magnitudes.
  void add(std::span<const Tensor> tensors, double factor, DType wire = DType::f32);
  /// Replaces tensors by those of the process `rank`.
  void copy_from(int rank, std::span<const Tensor> tensors);

  /// Whether the operations may be called by any thread, one at a time, and wait without a
  /// processor: gradients are then exchanged in a thread beside backward.
  virtual bool any_thread() const { return false; }

  /// Whether the three calls below, and sums in bfloat16, work: exchange() is there.
  virtual bool exchanges() const { return false; }
  /// Tensors that are divided among the processes: those of rank r are owned[r]. All processes pass
  /// tensors of the same types.
  using Owned = std::vector<std::vector<Tensor>>;
  /// As add(), but each process gets the sums of its own tensors only. What is in the others
  /// afterwards is undefined. With `wire` = bf16, sums are not rounded: they are not sent.
  void add_to_owners(const Owned& owned, double factor, DType wire = DType::f32);
  /// Replaces the tensors of the other processes by their values there.
  void copy_from_owners(const Owned& owned);
  /// The same, but on rank 0 only. Other processes pass their own tensors, and none of the others.
  void copy_to_first(const Owned& owned);
  /// The bytes that this process has sent so far, protocol included; nothing if nobody counts them.
  virtual std::optional<uint64_t> sent_bytes() const { return {}; }

  /// As gather(), for at most kNumbers numbers, at a point of the program that `call` names. If a
  /// process is at another point, all throw ProviderError. If a process is in tell(), all others
  /// throw an error of the class of its error, which names the rank.
  std::vector<std::vector<double>> agree(const std::string& call, std::span<const double> numbers);
  /// Tells the others of an error of this process. Does nothing if a process was lost. `kind`: the
  /// class of the error, which the others throw if it is Steep's.
  void tell(const std::exception& error) noexcept;
  void tell(const std::string& kind, const ErrorParts& parts) noexcept;
  /// The number of calls of agree() and tell() so far.
  uint64_t agreements() const { return agreements_; }
  /// An exchange that f does, as those of this class: PeerLostError if it throws std::exception.
  void together(const char* op, const std::function<void()>& f);
  /// Whether the last agree() or tell() ended with an error on all processes.
  bool failed_together() const { return failed_together_; }

  static constexpr size_t kNumbers = 12;

 protected:
  /// Whether this process was forked after the connections were made, which belong to the other.
  bool is_forked() const;
  /// The operations, which throw std::exception if they fail. `every` has room for all processes.
  virtual void gather_bytes(const void* own, void* every, size_t bytes) = 0;
  virtual void sum(float* values, size_t count) = 0;
  virtual void sum(double* values, size_t count) = 0;
  virtual void broadcast(void* bytes, size_t count, int from) = 0;
  /// Sends to a process and receives from another, or from the same, at the same time; nothing
  /// where the bytes are 0. Messages between two processes arrive in order. Called if exchanges().
  virtual void exchange(const void* out, size_t out_bytes, int to, void* in, size_t in_bytes,
                        int from);
  /// Which process was lost and how; called after an operation has failed. "" if it is not known.
  struct Loss {
    int rank = -1;
    std::string how{};
  };
  virtual Loss find_lost() { return {}; }

 private:
  void add_narrow(std::span<const Tensor> tensors, double factor);
  void send_around(const char* op, const Owned& owned, DType wire);
  void send_parts(const char* op, std::span<const Tensor> out, int to, std::span<const Tensor> in,
                  int from, bool adds, DType wire = DType::f32);

  pid_t process_ = ::getpid();
  std::string failure_;
  bool failed_together_ = false;
  uint64_t agreements_ = 0;
};

/// Connects to the processes that a launcher has started together with this one: "gloo", those of
/// `steep launch` (STEEP_RANK, STEEP_SIZE, STEEP_RENDEZVOUS; docs/parallel.md); "mpi", those of
/// Open MPI's mpirun. Throws ProviderError: another way; a plug-in that is not installed, with the
/// package that it needs; no launcher; processes that cannot be reached. PeerLostError: one that
/// was there and ended. InterruptedError, while gloo's processes wait for each other. With "mpi"
/// there is one connection in the life of a process.
std::shared_ptr<Peers> connect(const std::string& way);

/// The hash of a file, for DataParallel's facts. Throws IoError.
std::string hash_of_file(const std::filesystem::path& path);

class DividedGradients;
class EarlySums;
class GradientBuckets;
class PendingCheckpoint;

/// This process's part of a training in which each process has a session of its own. A step is two
/// small exchanges around forward and backward, then one sum of the gradients:
///
///   open        same model everywhere; rank 0's weights are copied if some are new
///   accumulate  forward and backward of this process's rows; gradients stay in the session
///   close       every process has its gradients; their weights in the mean
///   sum         the mean of the gradients over all rows
///   apply       clipping and update, which are the same everywhere
///
/// If Peers::any_thread(), step() sums in the midst of accumulate: gradients are divided into
/// buckets, and a thread exchanges each as soon as backward has it. Gradients of parts are summed
/// at the end.
///
/// With `zero` = 1 (ZeRO-1), each parameter has an owner, which alone keeps the optimizer's states
/// of that parameter: the sums of gradients are sent to owners only, the norm by which they are
/// clipped is added up over processes, each owner updates its parameters, and sends them to all.
/// The bytes sent are those of one sum over all processes. Whole parameters are assigned, the
/// largest first, to the process that has least: so the update is that of one process for every
/// optimizer. All ranks then call save_checkpoint(), and each writes its shard.
///
/// With `zero` = 2 (ZeRO-2), the sums of gradients are divided in the same way: backward sends each
/// gradient to its owner as soon as it is there, and frees it. Parts of a step are therefore sent
/// one by one, by accumulate(), which all ranks call equally often. An error in it is one of all
/// ranks, and drops the parts before it.
///
/// All processes learn of an error of one before any weight changes: that process throws its error,
/// the others one of the same class that names the rank. Training may go on with the next step,
/// unless a process was lost. With one process, all calls are those of the session.
class DataParallel {
 public:
  /// `session` outlives this object; nothing else runs its steps. `facts`: what else must be the
  /// same everywhere, by name; the session's options, parameters and the version are compared
  /// anyway. All is compared in the first step: ModelError names the rank and what differs. With
  /// `zero` it is compared here, too, and rank 0's states are copied; throws ModelError for another
  /// number than 0, 1 and 2, and as TrainingSession::hold_states_of(), and ProviderError unless
  /// Peers::exchanges(). `wire_precision`: "float32", or "bfloat16": gradients are exchanged in
  /// half the bytes, see Peers::add(); those of float64 weights are not. Throws ModelError for
  /// another, and ProviderError unless Peers::exchanges(). With one process, both do nothing.
  DataParallel(TrainingSession& session, std::shared_ptr<Peers> peers,
               std::map<std::string, std::string> facts = {}, int zero = 0,
               const std::string& wire_precision = "float32");

  Peers& peers() const { return *peers_; }

  /// As TrainingSession::step() with the rows of all processes. Inputs without rows, or no inputs,
  /// are a process without rows in this step. `outputs` are those of this process's rows. Throws
  /// DataError if no process has rows, or labels that count.
  StepResult step(std::span<const Tensor> inputs);
  StepResult step(std::initializer_list<Tensor> inputs) {
    return step(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }
  /// The same, but nothing if no process has rows or labels that count.
  std::optional<StepResult> step_if_any(std::span<const Tensor> inputs);
  /// Returns the inputs of a step. All processes learn of an error in it, as of one in the step.
  using Read = std::function<std::vector<Tensor>()>;
  StepResult step_reading(const Read& read);
  /// As TrainingSession::accumulate(), for the process's own rows. `rows`: the rows of all
  /// processes in this part: then all parts have the same weight, as in one process; 0: each part
  /// weighs as many as this process's rows, so that the update is that of the mean over all rows,
  /// and processes may have different numbers of parts. Parts of one size are the same with both.
  /// With a loss that weighs labels it makes no difference. An
  /// error here is this process's, see Peers::tell(), unless `zero` is 2.
  StepResult accumulate(std::span<const Tensor> inputs, int64_t rows = 0);
  StepResult accumulate_reading(const Read& read, int64_t rows = 0);
  /// As TrainingSession::apply_gradients(). If a part overflowed on one process ("fp16"), all skip
  /// the whole step.
  StepResult apply_gradients();
  std::optional<StepResult> apply_if_any();
  /// Number of parts that wait, those without rows included: the same on all processes.
  int64_t accumulated() const { return parts_; }
  void drop_gradients();  ///< on all processes

  /// The session's state has changed other than by steps: rank 0's is copied to all before the next
  /// step; with `zero`, the optimizer's states are not: all ranks have to load the same checkpoint.
  void refresh() { fresh_ = true; }
  /// The session has loaded a checkpoint: gradients that wait are dropped, too. Called by all
  /// ranks.
  void loaded();

  // For a caller that makes its sessions from something else, and replaces them:

  /// The session is another one from now on, in an open step too. `facts` are all that is compared
  /// besides its parameters, moments and statistics. `copy` makes what is outside of the session
  /// that of rank 0; all do so when they receive rank 0's states. With divide(), a session that
  /// keeps all states keeps this process's share from now on. Throws ModelError if it trains other
  /// parameters than the one before.
  void move_to(TrainingSession& session, std::map<std::string, std::string> facts,
               std::function<void()> copy);
  /// Divides the optimizer's states, as `zero` of the constructor. Called by all ranks.
  void divide(int zero);
  /// What states were loaded other than by a checkpoint, as text. Where it differs, the step that
  /// follows refresh() is a DataError, as for another checkpoint.
  void set_loaded(std::string text) { loaded_text_ = std::move(text); }
  /// As TrainingSession::optimizer_state(); with `zero`, on rank 0 those of all parameters. Called
  /// by all ranks.
  std::map<std::string, Tensor> optimizer_state();
  /// For the parts that come: over how many elements the loss is the mean, which otherwise follows
  /// from the inputs, and the form of a row. Forms have to be alike unless the loss weighs labels.
  void count(double elements, std::string form);
  /// What else determines the update of the next step.
  void set_settings(std::string text) { other_settings_ = std::move(text); }
  bool opened() const { return opened_; }  ///< whether a step has begun
  /// Ends a step that has begun: this process has failed outside of it.
  void fail(const std::string& kind, const ErrorParts& parts);

  /// As TrainingSession::save_checkpoint(), called by all ranks; any number of processes can load
  /// the checkpoint, one without ranks, too. Rank 0 writes it, and throws IoError alone. With
  /// `zero`, the checkpoint is sharded: each process writes the states that it keeps, so that none
  /// holds all of them, and rank 0 the rest, in a folder beside `path` that all must see. It takes
  /// the place of `path` when all is on disk; an error of one process is one of all, and leaves
  /// what was at `path`. `full`: rank 0 collects the states, and writes it alone.
  void save_checkpoint(const std::filesystem::path& path, const std::string& user = "{}",
                       bool full = false);
  /// The first part of a full save, called by all ranks: on rank 0, the states that other processes
  /// keep, else nothing.
  std::map<std::string, Tensor> gather_states();
  /// A warning on running statistics, which are those of rank 0; else "".
  std::string warning() const;

 private:
  struct Summary;
  TrainingSession::Receive receive() const;
  StepResult part_of_all(const Read& read, int64_t rows);
  StepResult run_part(std::span<const Tensor> inputs, bool weighs, double weight);
  GradientBuckets* buckets() const;
  bool needs_order() const;
  void set_order(bool anew);
  std::string types_of_parameters() const;
  void record(const char* name, size_t bytes, const std::function<void()>& exchange);
  void describe();
  void set_digest();
  void hold_share_of(TrainingSession& session) const;
  std::map<std::string, Tensor> gather_from_owners(
      const char* call, const std::function<std::vector<TensorInfo>(const std::string&)>& types,
      const std::function<Tensor(const std::string&)>& own);
  std::string loaded_states();
  void choose_wire(const std::string& precision);
  void open();
  static void require_same_checkpoint(const std::vector<std::vector<double>>& every, size_t at);
  void copy_from_first(const std::vector<std::vector<double>>& every);
  std::vector<std::string> state_names() const;
  StepResult part(std::span<const Tensor> inputs, int64_t rows);
  std::optional<StepResult> step_of_all(const Read& read);
  void clear_sums();
  void scale_sums(double factor);
  Summary own_summary();
  std::vector<Summary> close();
  void require_parts();
  void compare(const std::vector<Summary>& every);
  void compare_settings(const std::vector<Summary>& every);
  void compare_forms(const std::vector<Summary>& every);
  std::optional<StepResult> finish(std::vector<Tensor> outputs);
  void sum_gradients(const std::map<std::string, Tensor>& sums, double factor);
  void sum_all(const std::map<std::string, Tensor>& sums, double factor);
  double norm_of_all(const std::map<std::string, Tensor>& sums, double weight);
  void save_shards(const std::filesystem::path& path, const std::string& user);
  void write_shards(const std::filesystem::path& path, const std::string& user,
                    PendingCheckpoint* pending);
  std::map<std::string, Tensor> own_states() const;
  std::map<std::string, Tensor> states_of_others() const;
  StepResult apply(double norm);
  StepResult skip(const std::vector<Summary>& every, std::vector<Tensor> outputs);
  void undo();
  void forget();
  std::string settings() const;
  std::vector<Tensor> states(std::vector<std::string> names) const;
  [[noreturn]] void explain_difference();
  double elements(std::span<const Tensor> inputs) const;

  TrainingSession* session_;
  std::shared_ptr<Peers> peers_;
  std::map<std::string, std::string> facts_;
  bool facts_are_all_ = false;  ///< options of the session are not compared
  std::function<void()> copy_others_{};
  std::string other_settings_{};
  DType wire_ = DType::f32;                         ///< of gradients on their way
  double digest_ = 0;                               ///< of facts_
  std::vector<std::vector<std::string>> shares_{};  ///< with zero: the parameters of each rank
  int zero_ = 0;
  std::shared_ptr<DividedGradients> gradients_{};  ///< with zero = 2
  std::shared_ptr<EarlySums> early_{};             ///< if sums may be exchanged beside backward
  std::string summed_{};                           ///< the parameters of early_, as text
  bool moved_ = true;                              ///< the session does not know early_ yet
  std::string loaded_hash_{};  ///< of the checkpoint that this session, or one before it, loaded
  std::string loaded_text_{};  ///< set_loaded()
  bool fresh_ = true;
  bool opened_ = false;
  // the step that is open
  uint64_t seed_ = 0, runs_ = 0;
  double loss_scale_ = 1;
  std::map<std::string, Tensor> old_statistics_{};
  std::optional<double> counted_{};  ///< elements of the next part, if the caller counts them
  std::string form_{};               ///< of its rows
  int64_t parts_ = 0;
  double rows_ = 0;      ///< sum of the parts' elements, or of their shares
  double loss_ = 0;      ///< sum of loss · elements or share
  double share_ = 0;     ///< by which the sums so far will be multiplied: a part's weight; 0: none
  bool shared_ = false;  ///< whether accumulate() was told the rows of all
  bool skipped_ = false;
  double skipped_loss_ = 0;
  bool lost_ = false;   ///< an error in a part dropped the sums of those before it
  bool whole_ = false;  ///< the step has one part, whose gradients leave beside backward
};

}  // namespace steep
