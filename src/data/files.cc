#include "data/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "runtime/counted.h"
#include "runtime/crc32c.h"
#include "steep/error.h"

namespace steep {

void ByteSource::read(uint64_t offset, void* out, size_t count) const {
  if (offset > size() || count > size() - offset) {
    throw DataError(
        ErrorParts{.what = name() + " ends too early.",
                   .expected = fmt::format("{} at offset {}", counted(count, "byte"), offset),
                   .received = fmt::format("a file of {}", counted(size(), "byte")),
                   .remedy = "The file is truncated or damaged: write it again."});
  }
  if (count > 0) read_inside(offset, out, count);
}

FileSource::FileSource(const std::filesystem::path& path)
    : FileSource(AT_FDCWD, path.string(), path) {}

FileSource::FileSource(int folder, const std::string& name, const std::filesystem::path& path)
    // O_NONBLOCK: opening a FIFO must not wait for a writer; FIFOs are refused below.
    : name_(path.string()), fd_(::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (fd_.get() < 0) throw_io("open", path, errno);
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    throw_io("read", path, S_ISDIR(info.st_mode) ? EISDIR : EINVAL);
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

void FileSource::read_inside(uint64_t offset, void* out, size_t size) const {
  auto* p = static_cast<char*>(out);
  while (size > 0) {
    const int fault = injected_fault({.name = "read", .path = name_});
    errno = fault;
    const ssize_t count = fault > 0 ? -1
                                    : ::pread(fd_.get(), p, std::min<size_t>(size, size_t{1} << 30),
                                              static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_io("read", name_, errno);
    if (count == 0)
      throw DataError(ErrorParts{.what = name_ + " was truncated while it was read."});
    p += count;
    offset += static_cast<uint64_t>(count);
    size -= static_cast<size_t>(count);
  }
}

std::shared_ptr<void> FileSource::map() const {
  const auto size = static_cast<size_t>(size_);
  void* pages =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_.get(), 0);
  if (pages == MAP_FAILED) throw_io("map", name_, errno);
  return {pages, [size](void* p) { ::munmap(p, size); }};
}

void MemorySource::read_inside(uint64_t offset, void* out, size_t size) const {
  std::memcpy(out, bytes_.data() + offset, size);
}

uint32_t crc32c_of(const ByteSource& source) {
  std::vector<char> block(std::min<uint64_t>(source.size(), uint64_t{1} << 20));
  uint32_t crc = 0;
  for (uint64_t at = 0; at < source.size();) {
    const size_t count = static_cast<size_t>(std::min<uint64_t>(block.size(), source.size() - at));
    source.read(at, block.data(), count);
    crc = crc32c(crc, block.data(), count);
    at += count;
  }
  return crc;
}

}  // namespace steep
