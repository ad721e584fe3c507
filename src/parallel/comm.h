// What a plug-in of communication offers: libsteep_comm_gloo.so, libsteep_comm_mpi.so. Only these
// two link the libraries of communication; they are loaded when they are asked for. No exception
// crosses this interface.
#pragma once

#include <cstddef>

extern "C" {

struct SteepCommOptions {
  int rank;             // gloo; MPI tells it
  int size;             // gloo
  const char* folder;   // gloo: where the processes meet; empty at the start
  const char* address;  // gloo: the host name or address on which this process listens
};

/// Functions that return int return 0, or another number after they have written an error's text.
struct SteepComm {
  size_t size;  // of this struct
  /// 1: any thread may call the functions, one at a time, and a call that waits takes no processor.
  int any_thread;
  /// Null if it fails.
  void* (*open)(const SteepCommOptions* options, int* rank, int* ranks, char* error, size_t room);
  int (*gather)(void* comm, const void* own, void* every, size_t bytes, char* error, size_t room);
  int (*sum_float)(void* comm, float* values, size_t count, char* error, size_t room);
  int (*sum_double)(void* comm, double* values, size_t count, char* error, size_t room);
  int (*copy)(void* comm, void* data, size_t bytes, int from, char* error, size_t room);
  /// Sends to a process and receives from one at the same time; nothing where the bytes are 0.
  int (*exchange)(void* comm, const void* out, size_t out_bytes, int to, void* in, size_t in_bytes,
                  int from, char* error, size_t room);
  /// The bytes that this process has sent so far, of all operations, with what the protocol adds to
  /// them. May be null.
  unsigned long long (*sent)(void* comm);
  /// From another thread: a call that waits for other processes fails soon. May be null.
  void (*interrupt)(void* comm);
  void (*close)(void* comm);
};

typedef const SteepComm* (*SteepCommEntry)(void);
}

#define STEEP_COMM_SYMBOL "steep_comm_3"
