// Loads the plug-ins of communication.
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "parallel/comm.h"
#include "parallel/watch.h"
#include "steep/parallel.h"

namespace steep {
namespace {

namespace fs = std::filesystem;

class Plugin {
 public:
  Plugin(const SteepComm& table, void* comm) : table_(table), comm_(comm) {}
  ~Plugin() { table_.close(comm_); }
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
};

class PluginPeers : public Peers {
 public:
  PluginPeers(const SteepComm& table, void* comm, int rank, int size)
      : plugin_(table, comm), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool exchanges() const override { return true; }
  std::optional<uint64_t> sent_bytes() const override {
    if (plugin_.table().sent == nullptr) return {};
    return plugin_.sent();
  }
  void watch(const fs::path& folder) {
    watch_ = std::make_unique<Watch>(folder, rank_, size_, [this] { plugin_.interrupt(); });
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

std::shared_ptr<Peers> open(const std::string& way, const std::string& package,
                            const SteepCommOptions& options) {
  const SteepComm& table = load(way, package);
  std::array<char, 512> error{};
  int rank = 0, size = 1;
  void* comm = table.open(&options, &rank, &size, error.data(), error.size());
  if (comm == nullptr) {
    throw ProviderError(ErrorParts{
        .what = "The processes could not connect to each other.",
        .node = fmt::format("rank {}", options.rank),
        .expected = fmt::format("{} processes", options.size),
        .received = error.data(),
        .remedy = "Look at the output of the other processes; start all of them together."});
  }
  auto peers = std::make_shared<PluginPeers>(table, comm, rank, size);
  if (way == "gloo" && size > 1) peers->watch(options.folder);
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
