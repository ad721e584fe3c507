// Communication by gloo's TCP transport. The processes meet in a folder that all of them see.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <vector>

#include "parallel/comm.h"
#include "parallel/plugins/report.h"

namespace {

using steep::comm::report;

/// Of one operation: another process may validate, or write a checkpoint, meanwhile.
constexpr std::chrono::minutes kTimeout(30);
constexpr std::chrono::seconds kConnectTimeout(60);

/// Of exchange(): messages between two processes arrive in order. The high byte is none of gloo's
/// own operations (gloo/types.h).
constexpr uint64_t kExchangeSlot = uint64_t{0x40} << 56;

/// A connection, by number and inode: the number may be another file's once it is closed.
struct Connection {
  int file;
  ino_t inode;
  bool operator==(const Connection&) const = default;
};

struct Group {
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<gloo::rendezvous::Context> context;
  std::vector<Connection> connections;
  bool failed = false;
};

/// As report(), for an operation of the group.
template <typename F>
int run(void* comm, char* error, size_t room, F&& f) {
  const int failed = report(error, room, f);
  if (failed != 0) static_cast<Group*>(comm)->failed = true;
  return failed;
}

/// The TCP connections of this process.
std::vector<Connection> connections_now() {
  std::vector<Connection> result;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int file = std::atoi(entry.path().filename().c_str());
    struct stat status {};
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    if (::getpeername(file, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) continue;
    if (::fstat(file, &status) == 0) result.push_back({file, status.st_ino});
  }
  return result;
}

gloo::rendezvous::Context& context_of(void* comm) { return *static_cast<Group*>(comm)->context; }

void* open(const SteepCommOptions* options, int* rank, int* ranks, char* error, size_t room) {
  auto group = std::make_unique<Group>();
  const int failed = report(error, room, [&] {
    gloo::transport::tcp::attr attr;
    attr.hostname = options->address;
    group->device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(options->folder);
    const std::vector<Connection> before = connections_now();
    group->context = std::make_shared<gloo::rendezvous::Context>(options->rank, options->size);
    group->context->setTimeout(kConnectTimeout);
    group->context->connectFullMesh(store, group->device);
    group->context->setTimeout(kTimeout);
    for (const Connection& now : connections_now()) {
      if (std::find(before.begin(), before.end(), now) == before.end()) {
        group->connections.push_back(now);
      }
    }
  });
  if (failed != 0) return nullptr;
  *rank = options->rank;
  *ranks = options->size;
  return group.release();
}

int gather(void* comm, const void* own, void* every, size_t bytes, char* error, size_t room) {
  return run(comm, error, room, [&] {
    gloo::AllgatherOptions options(static_cast<Group*>(comm)->context);
    options.setInput(const_cast<char*>(static_cast<const char*>(own)), bytes);
    options.setOutput(static_cast<char*>(every),
                      bytes * static_cast<size_t>(context_of(comm).size));
    gloo::allgather(options);
  });
}

template <typename T>
int sum(void* comm, T* values, size_t count, char* error, size_t room) {
  return run(comm, error, room, [&] {
    gloo::AllreduceOptions options(static_cast<Group*>(comm)->context);
    options.setOutput(values, count);
    using Add = void (*)(void*, const void*, const void*, size_t);
    options.setReduceFunction(static_cast<Add>(&gloo::sum<T>));
    gloo::allreduce(options);
  });
}

int copy(void* comm, void* data, size_t bytes, int from, char* error, size_t room) {
  return run(comm, error, room, [&] {
    gloo::BroadcastOptions options(static_cast<Group*>(comm)->context);
    options.setOutput(static_cast<char*>(data), bytes);
    options.setRoot(from);
    gloo::broadcast(options);
  });
}

int exchange(void* comm, const void* out, size_t out_bytes, int to, void* in, size_t in_bytes,
             int from, char* error, size_t room) {
  return run(comm, error, room, [&] {
    gloo::rendezvous::Context& context = context_of(comm);
    std::unique_ptr<gloo::transport::UnboundBuffer> sends, receives;
    if (in_bytes > 0) {
      receives = context.createUnboundBuffer(in, in_bytes);
      receives->recv(from, kExchangeSlot);
    }
    if (out_bytes > 0) {
      sends = context.createUnboundBuffer(const_cast<void*>(out), out_bytes);
      sends->send(to, kExchangeSlot);
    }
    const bool sent = !sends || sends->waitSend(context.getTimeout());
    if (!sent || (receives && !receives->waitRecv(context.getTimeout()))) {
      throw std::runtime_error("an exchange was aborted");
    }
  });
}

/// As the system counts it for the connections.
unsigned long long sent(void* comm) {
  unsigned long long bytes = 0;
  for (const Connection& connection : static_cast<Group*>(comm)->connections) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (::getsockopt(connection.file, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    bytes += info.tcpi_bytes_sent;
  }
  return bytes;
}

/// Context::closeConnections() would leave waiting calls waiting; the end of a connection does not.
void interrupt(void* comm) {
  for (const Connection& connection : static_cast<Group*>(comm)->connections) {
    struct stat status {};
    if (::fstat(connection.file, &status) != 0 || status.st_ino != connection.inode) continue;
    ::shutdown(connection.file, SHUT_RDWR);
  }
}

/// After an error gloo may wait for ever for its own thread, so its objects stay until the end of
/// the process; the ends of the connections tell the others.
void close(void* comm) {
  if (static_cast<Group*>(comm)->failed) return interrupt(comm);
  char error[64];
  report(error, sizeof(error), [&] { delete static_cast<Group*>(comm); });
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const SteepComm* steep_comm_2(void) {
  static const SteepComm table{.size = sizeof(SteepComm),
                               .open = open,
                               .gather = gather,
                               .sum_float = sum<float>,
                               .sum_double = sum<double>,
                               .copy = copy,
                               .exchange = exchange,
                               .sent = sent,
                               .interrupt = interrupt,
                               .close = close};
  return &table;
}
