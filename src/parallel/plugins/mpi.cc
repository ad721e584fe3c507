// Communication by MPI. mpirun ends all processes if one is lost.
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "parallel/comm.h"
#include "parallel/plugins/report.h"

namespace {

using steep::comm::report;

/// Counts of MPI are int.
constexpr size_t kMost = 1u << 28;

void check(int code) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(std::string(text, static_cast<size_t>(length)));
}

/// The processes of the training, apart from those of a program around it.
struct Group {
  MPI_Comm comm = MPI_COMM_NULL;
  bool finalize = false;
};

MPI_Comm comm_of(void* group) { return static_cast<Group*>(group)->comm; }

void* open(const SteepCommOptions*, int* rank, int* ranks, char* error, size_t room) {
  auto* group = new Group;
  const int failed = report(error, room, [&] {
    int started = 0, ended = 0;
    check(MPI_Initialized(&started));
    check(MPI_Finalized(&ended));
    if (ended != 0) throw std::runtime_error("MPI has ended in this process");
    if (started == 0) {
      int provided = 0;
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided));
      group->finalize = true;
    }
    check(MPI_Comm_dup(MPI_COMM_WORLD, &group->comm));
    check(MPI_Comm_set_errhandler(group->comm, MPI_ERRORS_RETURN));
    check(MPI_Comm_rank(group->comm, rank));
    check(MPI_Comm_size(group->comm, ranks));
  });
  if (failed == 0) return group;
  delete group;
  return nullptr;
}

int gather(void* group, const void* own, void* every, size_t bytes, char* error, size_t room) {
  return report(error, room, [&] {
    if (bytes > kMost) throw std::runtime_error("a text is too long");
    const int count = static_cast<int>(bytes);
    check(MPI_Allgather(own, count, MPI_BYTE, every, count, MPI_BYTE, comm_of(group)));
  });
}

template <typename T>
int sum(void* group, T* values, size_t count, MPI_Datatype type, char* error, size_t room) {
  return report(error, room, [&] {
    for (size_t at = 0; at < count; at += kMost) {
      const int part = static_cast<int>(std::min(kMost, count - at));
      check(MPI_Allreduce(MPI_IN_PLACE, values + at, part, type, MPI_SUM, comm_of(group)));
    }
  });
}

int sum_float(void* group, float* values, size_t count, char* error, size_t room) {
  return sum(group, values, count, MPI_FLOAT, error, room);
}

int sum_double(void* group, double* values, size_t count, char* error, size_t room) {
  return sum(group, values, count, MPI_DOUBLE, error, room);
}

int copy(void* group, void* data, size_t bytes, int from, char* error, size_t room) {
  return report(error, room, [&] {
    for (size_t at = 0; at < bytes; at += kMost) {
      const int part = static_cast<int>(std::min(kMost, bytes - at));
      check(MPI_Bcast(static_cast<char*>(data) + at, part, MPI_BYTE, from, comm_of(group)));
    }
  });
}

int exchange(void* group, const void* out, size_t out_bytes, int to, void* in, size_t in_bytes,
             int from, char* error, size_t room) {
  return report(error, room, [&] {
    if (std::max(out_bytes, in_bytes) > kMost) throw std::runtime_error("a message is too long");
    check(MPI_Sendrecv(out, static_cast<int>(out_bytes), MPI_BYTE,
                       out_bytes > 0 ? to : MPI_PROC_NULL, 0, in, static_cast<int>(in_bytes),
                       MPI_BYTE, in_bytes > 0 ? from : MPI_PROC_NULL, 0, comm_of(group),
                       MPI_STATUS_IGNORE));
  });
}

void close(void* group) {
  auto* own = static_cast<Group*>(group);
  char error[64];
  report(error, sizeof(error), [&] {
    check(MPI_Comm_free(&own->comm));
    if (own->finalize) check(MPI_Finalize());
  });
  delete own;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const SteepComm* steep_comm_3(void) {
  static const SteepComm table{.size = sizeof(SteepComm),
                               .any_thread = 0,  // it polls
                               .open = open,
                               .gather = gather,
                               .sum_float = sum_float,
                               .sum_double = sum_double,
                               .copy = copy,
                               .exchange = exchange,
                               .sent = nullptr,
                               .interrupt = nullptr,
                               .close = close};
  return &table;
}
