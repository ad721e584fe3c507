// Loaded into each process of a training (LD_PRELOAD). In the process whose STEEP_RANK is
// FAULT_RANK, a fault of the kind FAULT_KIND happens FAULT_DELAY microseconds after the call
// FAULT_CALL has been made FAULT_COUNT times. The file FAULT_MARK is made when it happens.
//
// Calls: "start" (the library is loaded), "open" (listen, connect or accept of a socket), "small" and
// "large" (bytes sent to a socket), "save" (a write to a regular file whose path begins with
// FAULT_SAVE). Kinds: "kill", "stop", "cut" (all
// sockets are shut down, later ones too), "full" (writes to files fail from then on, as on a full
// disk).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kLarge = 4096, kMostFiles = 1024 };

static const char *wanted_call, *kind, *mark, *save;
static atomic_int left;
static atomic_int full, cut;
static useconds_t delay;

static int type_of(int file) {
  struct stat status;
  return fstat(file, &status) == 0 ? (int)(status.st_mode & S_IFMT) : 0;
}

static int is_of_save(int file) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof(path));
  return length > 0 && (size_t)length >= strlen(save) && strncmp(path, save, strlen(save)) == 0;
}

static void happen(void) {
  const int file = open(mark, O_CREAT | O_WRONLY, 0600);
  if (file >= 0) close(file);
  if (strcmp(kind, "kill") == 0) kill(getpid(), SIGKILL);
  if (strcmp(kind, "stop") == 0) kill(getpid(), SIGSTOP);
  if (strcmp(kind, "full") == 0) atomic_store(&full, 1);
  if (strcmp(kind, "cut") == 0) atomic_store(&cut, 1);
  for (int i = 0; atomic_load(&cut) != 0 && i < kMostFiles; ++i) {
    if (type_of(i) == S_IFSOCK) shutdown(i, SHUT_RDWR);
  }
}

static void* happen_late(void* nothing) {
  usleep(delay);
  happen();
  return nothing;
}

static void count(const char* call) {
  if (wanted_call == NULL || strcmp(call, wanted_call) != 0) return;
  if (atomic_fetch_sub(&left, 1) != 1) return;
  pthread_t thread;
  if (delay == 0) {
    happen();
  } else if (pthread_create(&thread, NULL, &happen_late, NULL) == 0) {
    pthread_detach(thread);
  }
}

__attribute__((constructor)) static void start(void) {
  const char *rank = getenv("STEEP_RANK"), *wanted = getenv("FAULT_RANK");
  if (rank == NULL || wanted == NULL || strcmp(rank, wanted) != 0) return;
  kind = getenv("FAULT_KIND");
  mark = getenv("FAULT_MARK");
  save = getenv("FAULT_SAVE");
  delay = (useconds_t)atoi(getenv("FAULT_DELAY"));
  atomic_store(&left, atoi(getenv("FAULT_COUNT")));
  wanted_call = getenv("FAULT_CALL");
  count("start");
}

static void count_open(void) {
  const int error = errno;
  count("open");
  errno = error;
}

/// Whether the write goes on.
static int before(int file, size_t bytes) {
  if (wanted_call == NULL) return 1;
  const int error = errno, type = type_of(file);
  if (type == S_IFSOCK) count(bytes < kLarge ? "small" : "large");
  if (type == S_IFREG && is_of_save(file)) count("save");
  if (type == S_IFSOCK && atomic_load(&cut) != 0) {
    shutdown(file, SHUT_RDWR);
    errno = ECONNRESET;
    return 0;
  }
  errno = error;
  if (type != S_IFREG || atomic_load(&full) == 0) return 1;
  errno = ENOSPC;
  return 0;
}

ssize_t write(int file, const void* data, size_t bytes) {
  ssize_t (*next)(int, const void*, size_t) = dlsym(RTLD_NEXT, "write");
  return before(file, bytes) ? next(file, data, bytes) : -1;
}

static size_t bytes_of(const struct iovec* parts, size_t number) {
  size_t bytes = 0;
  for (size_t i = 0; i < number; ++i) bytes += parts[i].iov_len;
  return bytes;
}

ssize_t writev(int file, const struct iovec* parts, int number) {
  ssize_t (*next)(int, const struct iovec*, int) = dlsym(RTLD_NEXT, "writev");
  return before(file, bytes_of(parts, (size_t)number)) ? next(file, parts, number) : -1;
}

ssize_t send(int file, const void* data, size_t bytes, int flags) {
  ssize_t (*next)(int, const void*, size_t, int) = dlsym(RTLD_NEXT, "send");
  return before(file, bytes) ? next(file, data, bytes, flags) : -1;
}

ssize_t sendmsg(int file, const struct msghdr* message, int flags) {
  ssize_t (*next)(int, const struct msghdr*, int) = dlsym(RTLD_NEXT, "sendmsg");
  const size_t bytes = bytes_of(message->msg_iov, message->msg_iovlen);
  return before(file, bytes) ? next(file, message, flags) : -1;
}

int listen(int file, int most) {
  int (*next)(int, int) = dlsym(RTLD_NEXT, "listen");
  count_open();
  return next(file, most);
}

int connect(int file, const struct sockaddr* address, socklen_t length) {
  int (*next)(int, const struct sockaddr*, socklen_t) = dlsym(RTLD_NEXT, "connect");
  count_open();
  return next(file, address, length);
}

int accept(int file, struct sockaddr* address, socklen_t* length) {
  int (*next)(int, struct sockaddr*, socklen_t*) = dlsym(RTLD_NEXT, "accept");
  count_open();
  return next(file, address, length);
}
