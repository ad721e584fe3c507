// Loads the plug-ins of communication.
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/comm.h"
#include "parallel/watch.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/threads.h"
#include "steep/parallel.h"

namespace steep {
namespace {

namespace fs = std::filesystem;

class Plugin {
 public:
  Plugin(const SteepComm& table, void* comm) : table_(table), comm_(comm) {}
  /// In a process that was forked meanwhile, leaves the connections to the other one.
  ~Plugin() {
    if (process_ == ::getpid()) table_.close(comm_);
  }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  template <typename F, typename... Args>
  void call(F* function, Args... args) const {
    std::array<char, 512> error{};
    if (function(comm_, args..., error.data(), error.size()) == 0) return;
    throw std::runtime_error(error.data());
  }
  void interrupt() const {
    if (table_.interrupt != nullptr) table_.interrupt(comm_);
  }
  uint64_t sent() const { return table_.sent(comm_); }
  const SteepComm& table() const { return table_; }

 private:
  const SteepComm& table_;
  void* comm_;
  pid_t process_ = ::getpid();
};

class PluginPeers : public Peers {
 public:
  PluginPeers(const SteepComm& table, void* comm, int rank, int size)
      : plugin_(table, comm), rank_(rank), size_(size) {}
  ~PluginPeers() override {
    // A fork: the thread of the watch is in the other process.
    if (!is_forked()) return;
    [[maybe_unused]] const auto* left_alone = watch_.release();
  }
  PluginPeers(const PluginPeers&) = delete;
  PluginPeers& operator=(const PluginPeers&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool exchanges() const override { return true; }
  bool any_thread() const override { return plugin_.table().any_thread != 0; }
  std::optional<uint64_t> sent_bytes() const override {
    if (plugin_.table().sent == nullptr) return {};
    return plugin_.sent();
  }
  void watch(std::unique_ptr<Watch> watch) {
    watch_ = std::move(watch);
    watch_->on_loss([this] { plugin_.interrupt(); });
  }

 protected:
  void gather_bytes(const void* own, void* every, size_t bytes) override {
    plugin_.call(plugin_.table().gather, own, every, bytes);
  }
  void sum(float* values, size_t count) override {
    plugin_.call(plugin_.table().sum_float, values, count);
  }
  void sum(double* values, size_t count) override {
    plugin_.call(plugin_.table().sum_double, values, count);
  }
  void broadcast(void* bytes, size_t count, int from) override {
    plugin_.call(plugin_.table().copy, bytes, count, from);
  }
  void exchange(const void* out, size_t out_bytes, int to, void* in, size_t in_bytes,
                int from) override {
    plugin_.call(plugin_.table().exchange, out, out_bytes, to, in, in_bytes, from);
  }
  Loss find_lost() override {
    if (watch_ == nullptr) return {};
    Watch::Loss loss = watch_->find();
    return {loss.rank, std::move(loss.how)};
  }

 private:
  Plugin plugin_;
  int rank_, size_;
  std::unique_ptr<Watch> watch_;
};

/// The folders in which a plug-in may lie, seen from the binary that contains this function.
std::vector<fs::path> folders() {
  Dl_info info{};
  std::vector<fs::path> result;
  std::error_code error;
  fs::path binary;
  if (dladdr(reinterpret_cast<const void*>(&folders), &info) != 0 && info.dli_fname != nullptr) {
    binary = fs::canonical(info.dli_fname, error);
  }
  if (error || binary.empty()) binary = fs::canonical("/proc/self/exe", error);
  const fs::path folder = binary.parent_path();
  return {folder, folder / "steep", folder.parent_path() / STEEP_LIBRARY_FOLDER / "steep"};
}

const SteepComm& load(const std::string& way, const std::string& package) {
  const std::string name = fmt::format("libsteep_comm_{}.so", way);
  std::string found;
  for (const fs::path& folder : folders()) {
    std::error_code error;
    if (fs::exists(folder / name, error)) found = (folder / name).string();
    if (!found.empty()) break;
  }
  // MPI's own plug-ins look for its symbols among those of all libraries.
  const int flags = RTLD_NOW | (way == "mpi" ? RTLD_GLOBAL : RTLD_LOCAL);
  void* library = found.empty() ? nullptr : dlopen(found.c_str(), flags);
  void* entry = library == nullptr ? nullptr : dlsym(library, STEEP_COMM_SYMBOL);
  const SteepComm* table = entry == nullptr ? nullptr : reinterpret_cast<SteepCommEntry>(entry)();
  if (table != nullptr && table->size == sizeof(SteepComm)) return *table;
  if (!found.empty() && library == nullptr) {
    throw ProviderError(ErrorParts{
        .what = fmt::format("The plug-in for communication by {} cannot be loaded.", way),
        .node = found,
        .received = dlerror(),
        .remedy = fmt::format("Install the libraries that it was built with ({}).", package)});
  }
  std::string received = found.empty() ? "no file " + name : found + ": another version";
  throw ProviderError(
      ErrorParts{.what = fmt::format("Communication by {} is not installed.", way),
                 .expected = name + " beside the program or in its library folder",
                 .received = std::move(received),
                 .remedy = fmt::format("Install {} and build Steep from source.", package)});
}

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

/// The number in a variable; -1 if there is none.
int number_in(const char* name) {
  const std::string text = variable(name);
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? number : -1;
}

/// For how long a process waits for the others to start, and then for them to connect.
std::chrono::seconds seconds_to_connect() {
  constexpr const char* kName = "STEEP_CONNECT_SECONDS";
  const std::string text = variable(kName);
  if (text.empty()) return std::chrono::seconds(60);
  constexpr int kMost = 24 * 60 * 60;
  const int number = number_in(kName);
  if (number >= 1 && number <= kMost) return std::chrono::seconds(number);
  throw DataError(
      ErrorParts{.what = fmt::format("The environment variable {} has an unknown value.", kName),
                 .node = kName,
                 .expected = fmt::format("a whole number of seconds, 1 to {}", kMost),
                 .received = text,
                 .remedy = "Correct the variable, or unset it for 60 seconds."});
}

[[noreturn]] void throw_unconnected(const SteepCommOptions& options, std::string received,
                                    const char* remedy) {
  throw ProviderError(ErrorParts{.what = "The processes could not connect to each other.",
                                 .node = fmt::format("rank {}", options.rank),
                                 .expected = counted(options.size, "process"),
                                 .received = std::move(received),
                                 .remedy = remedy});
}

constexpr const char* kLookAtOthers =
    "Look at the output of the other processes; start all of them together.";

/// Throws PeerLostError if a process was lost. One that leaves has found a loss: this process is
/// about to find the same.
void check_all_are_there(Watch& watch, int size) {
  if (watch.find_now().rank < 0) return;
  const Watch::Loss loss = watch.find(std::chrono::milliseconds(1500));
  throw PeerLostError(
      ErrorParts{.what = "Another process of this training ended or cannot be reached.",
                 .node = fmt::format("rank {}", loss.rank),
                 .op = "connect",
                 .expected = counted(size, "process"),
                 .received = fmt::format("rank {} {}", loss.rank, loss.how),
                 .remedy = "Look at the output of the other processes for the cause; then start "
                           "all again."});
}

using Clock = std::chrono::steady_clock;
/// Between two looks at the files of all processes, which may lie on another machine.
constexpr std::chrono::milliseconds kLook(200);

/// Until each process has begun to beat. They may start as late as `limit` allows. Throws
/// InterruptedError.
void wait_for_all(Watch& watch, const SteepCommOptions& options, std::chrono::seconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  std::chrono::milliseconds pause(5);
  for (;;) {
    const std::vector<int> absent = watch.absent();
    check_all_are_there(watch, options.size);
    if (absent.empty()) return;
    if (Clock::now() > end) {
      throw_unconnected(
          options,
          fmt::format("no start of rank {} in {} s", fmt::join(absent, ", "), limit.count()),
          "Look at the output of these processes. If they need longer, set "
          "STEEP_CONNECT_SECONDS.");
    }
    poll();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLook);
  }
}

/// The call of a plug-in that connects the processes.
struct Opening {
  std::string folder, address;
  SteepCommOptions options{};
  std::array<char, 512> error{};
  int rank = 0, size = 1;

  void* run(const SteepComm& table) {
    return table.open(&options, &rank, &size, error.data(), error.size());
  }
};

/// In a thread, since gloo waits for a process that is stopped until its own timeouts, and nothing
/// can interrupt that. After an error the thread is left to them.
void* open_watched(const SteepComm& table, const std::shared_ptr<Opening>& opening, Watch& watch,
                   std::chrono::seconds limit) {
  const auto promise = std::make_shared<std::promise<void*>>();
  std::future<void*> future = promise->get_future();
  start_quiet_thread("the connection to other processes", [&table, opening, promise] {
    promise->set_value(opening->run(table));
  }).detach();
  const Clock::time_point end = Clock::now() + limit;
  while (future.wait_for(kLook) != std::future_status::ready) {
    check_all_are_there(watch, opening->options.size);
    poll();
    if (Clock::now() > end) {
      throw_unconnected(opening->options, fmt::format("no connection in {} s", limit.count()),
                        "Look at the network between the processes. If it is slow, set "
                        "STEEP_CONNECT_SECONDS.");
    }
  }
  void* comm = future.get();
  if (comm == nullptr) {  // by the end of a connection, perhaps, before the end of its process
    watch.find();
    check_all_are_there(watch, opening->options.size);
  }
  return comm;
}

std::shared_ptr<Peers> open(const std::string& way, const std::string& package,
                            const SteepCommOptions& options) {
  const SteepComm& table = load(way, package);
  auto opening = std::make_shared<Opening>();
  opening->folder = options.folder;
  opening->address = options.address;
  opening->options = {.rank = options.rank,
                      .size = options.size,
                      .folder = opening->folder.c_str(),
                      .address = opening->address.c_str()};
  std::unique_ptr<Watch> watch;
  void* comm = nullptr;
  if (way == "gloo" && options.size > 1) {
    const std::chrono::seconds limit = seconds_to_connect();
    watch = std::make_unique<Watch>(options.folder, options.rank, options.size);
    wait_for_all(*watch, options, limit);
    comm = open_watched(table, opening, *watch, limit);
  } else {
    comm = opening->run(table);
  }
  if (comm == nullptr) throw_unconnected(options, opening->error.data(), kLookAtOthers);
  auto peers = std::make_shared<PluginPeers>(table, comm, opening->rank, opening->size);
  if (watch != nullptr) peers->watch(std::move(watch));
  return peers;
}

std::shared_ptr<Peers> open_gloo() {
  const int rank = number_in("STEEP_RANK"), size = number_in("STEEP_SIZE");
  const std::string folder = variable("STEEP_RENDEZVOUS");
  const std::string address = variable("STEEP_ADDRESS");
  if (size < 1 || rank < 0 || rank >= size || folder.empty()) {
    throw ProviderError(ErrorParts{
        .what = "No launcher of gloo's processes started this one.",
        .expected = "STEEP_RANK below STEEP_SIZE, and STEEP_RENDEZVOUS, a folder",
        .received = fmt::format("STEEP_RANK='{}', STEEP_SIZE='{}', STEEP_RENDEZVOUS='{}'",
                                variable("STEEP_RANK"), variable("STEEP_SIZE"), folder),
        .remedy = "Start the program by: steep launch -n 2 train …"});
  }
  return open("gloo", "libgloo-dev",
              {.rank = rank,
               .size = size,
               .folder = folder.c_str(),
               .address = address.empty() ? "127.0.0.1" : address.c_str()});
}

}  // namespace

std::shared_ptr<Peers> connect(const std::string& way) {
  const Limits limits = current_limits();
  const Budget budget(limits);  // so that the wait for other processes can be interrupted
  if (way == "gloo") return open_gloo();
  if (way == "mpi") {
    return open("mpi", "libopenmpi-dev and openmpi-bin",
                {.rank = number_in("OMPI_COMM_WORLD_RANK"),
                 .size = number_in("OMPI_COMM_WORLD_SIZE"),
                 .folder = "",
                 .address = ""});
  }
  throw ProviderError(ErrorParts{.what = "This way to connect processes is not supported.",
                                 .node = "parallel",
                                 .expected = "gloo or mpi",
                                 .received = way});
}

}  // namespace steep
