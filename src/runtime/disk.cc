#include "runtime/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/counted.h"
#include "runtime/crc32c.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;  // the kernel's own limit
constexpr const char* kTemporary = ".steep-tmp.";
constexpr const char* kLock = ".steep-lock";

FaultHook fault_hook;

/// Makes a system call, unless a test lets it fail, and repeats it if a signal interrupts it.
/// Returns its result; -1 with errno set on failure.
template <typename F>
auto attempt(const DiskCall& what, F&& call) -> decltype(call()) {
  for (;;) {
    if (const int fault = injected_fault(what); fault > 0) {
      errno = fault;
      if (fault == EINTR) continue;
      return -1;
    }
    auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

std::string text_of(int error) { return std::error_code(error, std::generic_category()).message(); }

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

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// Exchanges what two paths name. ENOSYS where the system has no call for it (WebAssembly).
int exchange(const fs::path& a, const fs::path& b) {
#ifdef RENAME_EXCHANGE
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
#else
  static_cast<void>(a), static_cast<void>(b);
  errno = ENOSYS;
  return -1;
#endif
}

/// Removes the temporary files that killed writers of `target` left. Their names are those of
/// unused_name().
void remove_stale_files(const fs::path& target) {
  const std::string prefix = target.filename().string() + kTemporary;
  std::error_code error;
  for (auto it = fs::directory_iterator(parent_of(target), error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(prefix) || name.size() != prefix.size() + 16) continue;
    if (name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string::npos) {
      remove_file(it->path());
    }
  }
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void throw_io(std::string_view verb, const fs::path& path, int error) {
  throw IoError(
      ErrorParts{.what = fmt::format("cannot {} {}: {}", verb, path.string(), text_of(error)),
                 .remedy = remedy_for(error)});
}

void set_fault_hook(FaultHook hook) { fault_hook = std::move(hook); }

int injected_fault(const DiskCall& call) { return fault_hook ? fault_hook(call) : 0; }

// --- destinations -------------------------------------------------------------------------------

FileMark mark_of(const struct stat& info) {
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .size = info.st_size,
          .seconds = info.st_mtim.tv_sec,
          .nanoseconds = info.st_mtim.tv_nsec};
}

fs::path follow_links(fs::path path) {
  const fs::path first = path;
  for (int i = 0; i < kMaxLinks; ++i) {
    std::error_code error;
    const fs::path next = fs::read_symlink(path, error);
    if (error) return path;
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  throw_io("write", first, ELOOP);
}

std::string destination_text(const fs::path& path) {
  const fs::path target = follow_links(path);
  return target == path ? path.string()
                        : fmt::format("{} (a link to {})", path.string(), target.string());
}

fs::path check_destination(const fs::path& path) {
  fs::path target = follow_links(path);
  struct stat info {};
  const bool there = ::stat(path.c_str(), &info) == 0;
  if (!there && errno != ENOENT) throw_io("write", target, errno);
  if (there ? !S_ISREG(info.st_mode) : !target.has_filename()) {
    throw IoError(
        ErrorParts{.what = fmt::format("cannot write {}: it is {}", destination_text(path),
                                       there ? kind_of(info.st_mode) : "no name of a file"),
                   .expected = "a regular file, or a new name",
                   .received = there ? kind_of(info.st_mode) : path.string(),
                   .remedy = "give the name of a file"});
  }
  const fs::path parent = parent_of(target);
  if (::stat(parent.c_str(), &info) != 0) throw_io("write into", parent, errno);
  if (!S_ISDIR(info.st_mode)) throw_io("write into", parent, ENOTDIR);
  if (::faccessat(AT_FDCWD, parent.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    throw_io("write into", parent, errno);
  }
  // The temporary file's name is longer.
  if (::lstat(unused_name(target, kTemporary).c_str(), &info) != 0 && errno != ENOENT) {
    throw_io("write", target, errno);
  }
  return target;
}

fs::path unused_name(const fs::path& target, std::string_view mark) {
  std::random_device random;
  fs::path name = target;
  name += fmt::format("{}{:08x}{:08x}", mark, random(), random());
  return name;
}

// --- system calls -------------------------------------------------------------------------------

FileWriter::FileWriter(const fs::path& path)
    : name_(path.string()), fd_(attempt({.name = "open", .path = name_}, [&] {
        return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
      })) {
  if (fd_.get() < 0) throw_io("create", path, errno);
}

void FileWriter::write(const void* data, size_t size) {
  const auto* p = static_cast<const char*>(data);
  crc_ = crc32c(crc_, data, size);
  bytes_ += size;
  while (size > 0) {
    size_t part = std::min<size_t>(size, size_t{1} << 30);
    // A write may write fewer bytes than requested; tests cause that here.
    const int fault = injected_fault({.name = "write", .path = name_, .bytes = {p, part}});
    if (fault < 0) part = std::min(part, static_cast<size_t>(-fault));
    errno = fault;
    const ssize_t count = fault > 0 ? -1 : ::write(fd_.get(), p, part);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_io("write", name_, errno);
    p += count;
    size -= static_cast<size_t>(count);
  }
}

void FileWriter::sync() {
  const DiskCall call{.name = "fsync", .path = name_};
  if (attempt(call, [&] { return ::fsync(fd_.get()); }) != 0) throw_io("write", name_, errno);
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw_io("read", name_, errno);
  if (static_cast<uint64_t>(info.st_size) != bytes_) {
    throw IoError(ErrorParts{.what = name_ + " was changed while it was written",
                             .expected = counted(bytes_, "byte"),
                             .received = counted(info.st_size, "byte")});
  }
}

void sync_folder(const fs::path& folder) {
  const fs::path where = folder.empty() ? "." : folder;
  const Descriptor fd(::open(where.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) throw_io("open", where, errno);
  const DiskCall call{.name = "fsync", .path = where.native()};
  // Some network file systems cannot sync folders and return EINVAL; their renames are synchronous.
  if (attempt(call, [&] { return ::fsync(fd.get()); }) != 0 && errno != EINVAL) {
    throw_io("sync", where, errno);
  }
}

void sync_parent(const fs::path& path) {
  try {
    sync_folder(path.parent_path());
  } catch (const IoError& error) {
    throw IoError(ErrorParts{
        .what = fmt::format("{} is new and in place, but may not survive a power loss: {}",
                            path.string(), error.parts().what),
        .remedy = "check the disk, and write it again"});
  }
}

bool make_folder(const fs::path& folder) {
  const DiskCall call{.name = "mkdir", .path = folder.native()};
  if (attempt(call, [&] { return ::mkdir(folder.c_str(), 0777); }) == 0) return true;
  if (errno != EEXIST) throw_io("create", folder, errno);
  return false;
}

void make_folders(const fs::path& folder) {
  if (!folder.has_relative_path()) return;
  const fs::path parent = folder.parent_path();
  make_folders(parent);
  std::error_code error;
  const bool made = !fs::is_directory(folder, error) && make_folder(folder);
  if (!made && !fs::is_directory(folder, error)) throw_io("create", folder, ENOTDIR);
  try {
    // Also if the folder existed: a process that was killed may have made it just before.
    sync_folder(parent);
  } catch (const IoError&) {
    if (made) throw;
  }
}

bool remove_file(const fs::path& path) {
  const DiskCall call{.name = "unlink", .path = path.native()};
  return attempt(call, [&] { return ::unlink(path.c_str()); }) == 0;
}

bool remove_folder(const fs::path& path) {
  const DiskCall call{.name = "rmdir", .path = path.native()};
  return attempt(call, [&] { return ::rmdir(path.c_str()); }) == 0;
}

void rename_path(const fs::path& from, const fs::path& to) {
  const DiskCall call{.name = "rename", .path = from.native(), .to = to.native()};
  if (attempt(call, [&] { return ::rename(from.c_str(), to.c_str()); }) != 0) {
    throw_io("rename to", to, errno);
  }
}

bool exchange_paths(const fs::path& a, const fs::path& b) {
  const DiskCall call{.name = "exchange", .path = a.native(), .to = b.native()};
  const int result = attempt(call, [&] { return exchange(a, b); });
  if (result == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  throw_io("rename to", b, errno);
}

// --- locks --------------------------------------------------------------------------------------

DiskLock::DiskLock(const fs::path& target, std::chrono::milliseconds patience) : path_(target) {
  using Clock = std::chrono::steady_clock;
  path_ += kLock;
  const auto deadline = Clock::now() + patience;
  auto pause = std::chrono::milliseconds(1);
  for (;;) {
    const DiskCall call{.name = "open", .path = path_.native()};
    fd_ = Descriptor(attempt(call, [&] {
      return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    }));
    if (fd_.get() < 0) throw_io("create", path_, errno);
    if (::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0) {
      exclusive_ = true;
      if (is_ours()) return;
      exclusive_ = false;
      continue;  // the previous holder has removed the file
    }
    if (errno != EWOULDBLOCK && errno != EINTR) {
      remove_file(path_);
      return;
    }
    if (Clock::now() >= deadline) {
      throw IoError(ErrorParts{
          .what = fmt::format("cannot write {}: another process has been writing it for long",
                              target.string()),
          .expected = fmt::format("its lock {} within {} s", path_.string(),
                                  std::chrono::duration<double>(patience).count()),
          .remedy = "end the other process, or write elsewhere"});
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(20));
  }
}

DiskLock::~DiskLock() {
  if (exclusive_ && is_ours()) remove_file(path_);
  // Closing is not enough: a process that was forked meanwhile shares the lock.
  if (fd_.get() >= 0) ::flock(fd_.get(), LOCK_UN);
}

bool DiskLock::is_ours() const {
  struct stat mine {
  }, there{};
  return ::fstat(fd_.get(), &mine) == 0 && ::lstat(path_.c_str(), &there) == 0 &&
         mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

void DiskLock::verify() const {
  if (exclusive_ && !is_ours()) {
    throw IoError(ErrorParts{.what = path_.string() + " was removed while it was held",
                             .remedy = "write again; nothing was replaced"});
  }
}

void write_file(const fs::path& path, const std::function<void(FileWriter&)>& contents,
                const Companions& companions) {
  const fs::path target = check_destination(path);
  const DiskLock lock(target);
  if (lock.exclusive()) remove_stale_files(target);
  const fs::path temporary = unused_name(target, kTemporary);
  try {
    if (companions.write) companions.write(target);
    {
      FileWriter file(temporary);
      contents(file);
      file.sync();
    }
    lock.verify();
    check_destination(target);  // it may have changed meanwhile
    rename_path(temporary, target);
  } catch (...) {
    remove_file(temporary);
    if (companions.discard) companions.discard();
    throw;
  }
  sync_parent(target);
  if (companions.sweep) companions.sweep();
}

}  // namespace steep
