#include "train/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "steep/error.h"
#include "train/crc32c.h"

namespace steep {
namespace {

FaultHook fault_hook;

/// Runs `call` unless a test wants it to fail; repeats when a signal interrupts it. Returns the
/// call's result, -1 with errno set on failure.
template <typename F>
auto attempt(std::string_view name, F&& call) -> decltype(call()) {
  for (;;) {
    if (const int fault = injected_fault(name)) {
      errno = fault;
      if (fault == EINTR) continue;
      return -1;
    }
    auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

std::string remedy_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "free some space, or write elsewhere";
    case EACCES:
    case EPERM:
    case EROFS: return "check the permissions, or write elsewhere";
    case ENOENT: return "check the path";
    default: return "";
  }
}

}  // namespace

void throw_io(std::string_view verb, const std::filesystem::path& path, int error) {
  throw IoError(
      ErrorParts{.what = fmt::format("cannot {} {}: {}", verb, path.string(),
                                     std::error_code(error, std::generic_category()).message()),
                 .remedy = remedy_for(error)});
}

void set_fault_hook(FaultHook hook) { fault_hook = std::move(hook); }

int injected_fault(std::string_view call) { return fault_hook ? fault_hook(call) : 0; }

// --- reading
// ----------------------------------------------------------------------------------------

void ByteSource::read(uint64_t offset, void* out, size_t count) const {
  if (offset > size() || count > size() - offset) {
    throw DataError(ErrorParts{.what = name() + " ends too early",
                               .expected = fmt::format("{} bytes at offset {}", count, offset),
                               .received = fmt::format("a file of {} bytes", size()),
                               .remedy = "the file is truncated or damaged: write it again"});
  }
  if (count > 0) read_inside(offset, out, count);
}

FileSource::FileSource(const std::filesystem::path& path) : name_(path.string()) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it is refused below.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) throw_io("open", path, errno);
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    const int error = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    ::close(fd_);
    throw_io("read", path, error);
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

FileSource::~FileSource() { ::close(fd_); }

void FileSource::read_inside(uint64_t offset, void* out, size_t size) const {
  auto* p = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got =
        ::pread(fd_, p, std::min<size_t>(size, size_t{1} << 30), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_io("read", name_, errno);
    if (got == 0) throw DataError(ErrorParts{.what = name_ + " was truncated while it was read"});
    p += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
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

// --- writing
// ----------------------------------------------------------------------------------------

FileWriter::FileWriter(const std::filesystem::path& path) : name_(path.string()) {
  fd_ = attempt("open", [&] {
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
  });
  if (fd_ < 0) throw_io("create", path, errno);
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::write(const void* data, size_t size) {
  const auto* p = static_cast<const char*>(data);
  crc_ = crc32c(crc_, data, size);
  bytes_ += size;
  while (size > 0) {
    const size_t part = std::min<size_t>(size, size_t{1} << 30);
    const ssize_t done = attempt("write", [&] { return ::write(fd_, p, part); });
    if (done < 0) throw_io("write", name_, errno);
    p += done;
    size -= static_cast<size_t>(done);
  }
}

void FileWriter::sync() {
  if (attempt("fsync", [&] { return ::fsync(fd_); }) != 0) throw_io("write", name_, errno);
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path where = folder.empty() ? "." : folder;
  const int fd = ::open(where.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_io("open", where, errno);
  const int result = attempt("fsync", [&] { return ::fsync(fd); });
  const int error = errno;
  ::close(fd);
  // Some network file systems cannot sync folders and say so; their renames are synchronous.
  if (result != 0 && error != EINVAL) throw_io("sync", where, error);
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (attempt("rename", [&] { return ::rename(from.c_str(), to.c_str()); }) != 0) {
    throw_io("rename to", to, errno);
  }
}

bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b) {
  const int result = attempt("exchange", [&] {
    return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
  });
  if (result == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  throw_io("rename to", b, errno);
}

void write_file(const std::filesystem::path& path,
                const std::function<void(FileWriter&)>& contents) {
  // A link keeps pointing where it points: the file behind it is replaced.
  std::error_code ignored;
  const std::filesystem::path target =
      std::filesystem::is_symlink(path, ignored) ? std::filesystem::weakly_canonical(path) : path;
  std::filesystem::path temporary = target;
  temporary += fmt::format(".steep-tmp.{}", ::getpid());
  std::filesystem::remove(temporary, ignored);
  try {
    {
      FileWriter file(temporary);
      contents(file);
      file.sync();
    }
    rename_path(temporary, target);
  } catch (...) {
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  sync_folder(target.parent_path());
}

}  // namespace steep
