#include "sessions/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "runtime/budget.h"
#include "runtime/disk.h"
#include "runtime/memory.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;

constexpr size_t kAlignment = 64;  // of each tensor, as everywhere in the engine

/// A new file in `folder` that has no name.
Descriptor create_nameless(const fs::path& folder) {
#ifdef O_TMPFILE
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd >= 0) return Descriptor(fd);
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
    throw_io("create a file in", folder, errno);
#endif
  std::string name = (folder / "steep-states-XXXXXX").string();
  Descriptor file(::mkstemp(name.data()));
  if (file.get() < 0) throw_io("create a file in", folder, errno);
  ::unlink(name.c_str());
  ::fcntl(file.get(), F_SETFD, FD_CLOEXEC);
  return file;
}

/// Reserves the space now, since a page that finds no space later is a signal, not an error.
void reserve(const Descriptor& file, size_t bytes, const fs::path& folder) {
  const int fault = injected_fault({.name = "reserve", .path = folder.native()});
  const int error = fault > 0 ? fault : ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  if (error == 0) return;
  struct statvfs space {};
  if (error != ENOSPC || ::statvfs(folder.c_str(), &space) != 0)
    throw_io("reserve space in", folder, error);
  throw IoError(
      {.what = fmt::format("The folder {} has too little space for the states of the training.",
                           folder.string()),
       .node = "offload_folder",
       .expected = exact_bytes_text(bytes),
       .received = exact_bytes_text(static_cast<size_t>(space.f_bavail) * space.f_frsize) + " free",
       .remedy = "Free some space, or name another folder."});
}

bool is_zero(const char* data, size_t bytes) {
  return bytes == 0 || (data[0] == 0 && std::memcmp(data, data + 1, bytes - 1) == 0);
}

/// Copies into memory that is zero.
void copy_nonzero(char* to, const char* from, size_t bytes) {
  constexpr size_t kBlock = size_t{1} << 16;
  for (size_t at = 0; at < bytes; at += kBlock) {
    const size_t count = std::min(kBlock, bytes - at);
    if (!is_zero(from + at, count)) std::memcpy(to + at, from + at, count);
  }
}

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void move_to_file(std::span<Tensor* const> tensors, const fs::path& folder) {
  size_t total = 0;
  for (const Tensor* tensor : tensors) total += aligned(tensor->nbytes());
  if (total == 0) return;
  const Descriptor file = create_nameless(folder);
  reserve(file, total, folder);
  void* const start = allocation_allowed(total) ? ::mmap(nullptr, total, PROT_READ | PROT_WRITE,
                                                         MAP_SHARED, file.get(), 0)
                                                : MAP_FAILED;
  if (start == MAP_FAILED) {
    throw OutOfMemoryError({.what = "The file of states could not be mapped into memory.",
                            .node = "offload_folder",
                            .received = exact_bytes_text(total)});
  }
  const std::shared_ptr<void> mapping(start, [total](void* p) { ::munmap(p, total); });
  auto* at = static_cast<char*>(start);
  for (Tensor* tensor : tensors) {
    const size_t bytes = tensor->nbytes();
    if (bytes == 0) continue;
    copy_nonzero(at, static_cast<const char*>(tensor->data()), bytes);
    *tensor = Tensor::wrap(tensor->dtype(), tensor->dims(), at, mapping);
    at += aligned(bytes);
  }
}

}  // namespace steep
