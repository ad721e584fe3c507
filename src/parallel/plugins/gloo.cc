// Communication by gloo's TCP transport. The processes meet in a folder that all of them see.
#include <fcntl.h>
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
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
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

/// The buffers in use. After an interruption none is waited for, and no further one is made.
class Waits {
 public:
  void add(gloo::transport::UnboundBuffer* buffer) {
    const std::lock_guard lock(mutex_);
    if (interrupted_) throw std::runtime_error("the group was interrupted");
    buffers_.insert(buffer);
  }
  void remove(gloo::transport::UnboundBuffer* buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.erase(buffer);
  }
  void interrupt() {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    for (gloo::transport::UnboundBuffer* buffer : buffers_) {
      buffer->abortWaitSend();
      buffer->abortWaitRecv();
    }
  }

 private:
  std::mutex mutex_;
  std::set<gloo::transport::UnboundBuffer*> buffers_;
  bool interrupted_ = false;
};

/// A buffer of gloo. A wait that was aborted is an error; gloo's operations would go on.
class Buffer final : public gloo::transport::UnboundBuffer {
 public:
  using Time = std::chrono::milliseconds;

  Buffer(std::unique_ptr<gloo::transport::UnboundBuffer> own, Waits* waits)
      : UnboundBuffer(own->ptr, own->size), own_(std::move(own)), waits_(*waits) {
    waits_.add(own_.get());
  }
  ~Buffer() override { waits_.remove(own_.get()); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool waitRecv(int* rank, Time timeout) override { return checked(own_->waitRecv(rank, timeout)); }
  bool waitSend(int* rank, Time timeout) override { return checked(own_->waitSend(rank, timeout)); }
  void abortWaitRecv() override { own_->abortWaitRecv(); }
  void abortWaitSend() override { own_->abortWaitSend(); }
  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    own_->send(to, slot, offset, bytes);
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    own_->recv(from, slot, offset, bytes);
  }
  void recv(std::vector<int> from, uint64_t slot, size_t offset, size_t bytes) override {
    own_->recv(std::move(from), slot, offset, bytes);
  }

 private:
  static bool checked(bool done) {
    if (!done) throw std::runtime_error("the group was interrupted");
    return true;
  }

  std::unique_ptr<gloo::transport::UnboundBuffer> own_;
  Waits& waits_;
};

/// gloo's part of a context that makes buffers.
class Transport final : public gloo::transport::Context {
 public:
  Transport(std::shared_ptr<gloo::transport::Context> own, Waits* waits)
      : Context(own->rank, own->size), own_(std::move(own)), waits_(waits) {
    setTimeout(own_->getTimeout());
  }
  std::unique_ptr<gloo::transport::Pair>& getPair(int rank) override { return own_->getPair(rank); }
  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override {
    return own_->createPair(rank);
  }
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                      size_t bytes) override {
    return std::make_unique<Buffer>(own_->createUnboundBuffer(data, bytes), waits_);
  }

 private:
  std::shared_ptr<gloo::transport::Context> own_;
  Waits* waits_;
};

/// A context whose operations can be interrupted. gloo alone may wait until the timeout: it loses a
/// message that it begins to send while it learns that the other process is gone.
class Context final : public gloo::rendezvous::Context {
 public:
  using gloo::rendezvous::Context::Context;

  /// Once the processes are connected.
  void make_interruptible() {
    transportContext_ = std::make_shared<Transport>(std::move(transportContext_), &waits_);
  }
  void interrupt() { waits_.interrupt(); }

 private:
  Waits waits_;
};

/// gloo's store takes no notice of a full disk: the others would read a part of a value.
class Store final : public gloo::rendezvous::FileStore {
 public:
  using FileStore::FileStore;

  void set(const std::string& key, const std::vector<char>& data) override {
    const std::string early = tmpPath(key), path = objectPath(key);
    const int file = ::open(early.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0) errno = ENOSPC;  // stays, if a part is written
    const bool written =
        file >= 0 && ::write(file, data.data(), data.size()) == static_cast<ssize_t>(data.size()) &&
        ::rename(early.c_str(), path.c_str()) == 0;
    const int error = errno;
    if (file >= 0) ::close(file);
    if (written) return;
    throw std::runtime_error("the folder in which the processes meet, " + basePath_ +
                             ", cannot be written to: " + std::strerror(error) +
                             (error == ENOSPC ? ". Make room on its disk, or use another" : ""));
  }
};

struct Group {
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<Context> context;
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

Context& context_of(void* comm) { return *static_cast<Group*>(comm)->context; }

void* open(const SteepCommOptions* options, int* rank, int* ranks, char* error, size_t room) {
  auto group = std::make_unique<Group>();
  const int failed = report(error, room, [&] {
    gloo::transport::tcp::attr attr;
    attr.hostname = options->address;
    group->device = gloo::transport::tcp::CreateDevice(attr);
    Store store(options->folder);
    const std::vector<Connection> before = connections_now();
    group->context = std::make_shared<Context>(options->rank, options->size);
    group->context->setTimeout(kConnectTimeout);
    group->context->connectFullMesh(store, group->device);
    group->context->setTimeout(kTimeout);
    group->context->make_interruptible();
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
    Context& context = context_of(comm);
    std::unique_ptr<gloo::transport::UnboundBuffer> sends, receives;
    if (in_bytes > 0) {
      receives = context.createUnboundBuffer(in, in_bytes);
      receives->recv(from, kExchangeSlot);
    }
    if (out_bytes > 0) {
      sends = context.createUnboundBuffer(const_cast<void*>(out), out_bytes);
      sends->send(to, kExchangeSlot);
    }
    if (sends) sends->waitSend(context.getTimeout());
    if (receives) receives->waitRecv(context.getTimeout());
  });
}

/// As the system counts it for the connections.
unsigned long long sent(void* comm) {
  unsigned long long bytes = 0;
  for (const Connection& connection : static_cast<Group*>(comm)->connections) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (::getsockopt(connection.file, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    bytes += info.tcpi_bytes_sent - info.tcpi_bytes_retrans;  // what the network lost counts once
  }
  return bytes;
}

/// The end of the connections tells the other processes. Context::closeConnections() would leave
/// waiting calls waiting.
void interrupt(void* comm) {
  for (const Connection& connection : static_cast<Group*>(comm)->connections) {
    struct stat status {};
    if (::fstat(connection.file, &status) != 0 || status.st_ino != connection.inode) continue;
    ::shutdown(connection.file, SHUT_RDWR);
  }
  context_of(comm).interrupt();
}

/// After an error gloo may wait for ever for its own thread, so its objects stay until the end of
/// the process; the ends of the connections tell the others.
void close(void* comm) {
  if (static_cast<Group*>(comm)->failed) return interrupt(comm);
  char error[64];
  report(error, sizeof(error), [&] { delete static_cast<Group*>(comm); });
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const SteepComm* steep_comm_3(void) {
  static const SteepComm table{.size = sizeof(SteepComm),
                               .any_thread = 1,
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
