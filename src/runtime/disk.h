// What changes the disk: every such call is made here, every failure is an exception, and every
// write is durable before its name appears. What is replaced is a regular file, or nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace steep {

/// A file descriptor, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

/// What `path` leads to through symbolic links, whether anything is there or not. Throws IoError
/// when they run in circles.
std::filesystem::path follow_links(std::filesystem::path path);

/// Where write_file(path) would put its file: follow_links(path). Throws IoError for what it would
/// refuse: a device, FIFO, socket or folder, behind links too; a parent that is missing or may not
/// be written; a name that is too long. Leaves nothing behind.
std::filesystem::path check_destination(const std::filesystem::path& path);

/// `path`, and where it leads if it is a link. For messages.
std::string destination_text(const std::filesystem::path& path);

/// A new file, written once from front to back.
class FileWriter {
 public:
  /// Throws IoError when the file exists or cannot be created.
  explicit FileWriter(const std::filesystem::path& path);

  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// The bytes are on disk when it returns, all of them. Throws IoError (also for errors of earlier
  /// writes).
  void sync();
  uint64_t bytes() const { return bytes_; }
  uint32_t crc() const { return crc_; }

 private:
  std::string name_;
  Descriptor fd_;
  uint64_t bytes_ = 0;
  uint32_t crc_ = 0;
};

/// Makes renames and new names inside `folder` durable.
void sync_folder(const std::filesystem::path& folder);

/// sync_folder() of the parent of what was just put in place at `path`; its error says that it is.
void sync_parent(const std::filesystem::path& path);

/// mkdir(2). False when the name is taken; throws IoError.
bool make_folder(const std::filesystem::path& folder);

/// `folder`, an absolute path, and its parents, durably. Throws IoError.
void make_folders(const std::filesystem::path& folder);

/// unlink(2) or rmdir(2); false when that fails.
bool remove_file(const std::filesystem::path& path);
bool remove_folder(const std::filesystem::path& path);

/// rename(2). Throws IoError.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Swaps two names in one atomic step. False when the file system cannot; throws IoError otherwise.
bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);

/// A name beside `target` that nobody has: target + `mark` + 16 digits.
std::filesystem::path unused_name(const std::filesystem::path& target, std::string_view mark);

/// The right to write at `target`: others, in this process or another, wait until it ends. It is
/// flock(2) on the file TARGET.steep-lock, which is removed at the end; a process that dies loses
/// the lock and leaves the file to the next. Where the file system knows no locks, nobody waits.
class DiskLock {
 public:
  /// Throws IoError when the file cannot be made, or the lock is not free within `patience`.
  explicit DiskLock(const std::filesystem::path& target,
                    std::chrono::milliseconds patience = std::chrono::minutes(10));
  ~DiskLock();
  DiskLock(const DiskLock&) = delete;
  DiskLock& operator=(const DiskLock&) = delete;

  /// Nobody else writes at `target`, so that what lies beside it was left by the dead.
  bool exclusive() const { return exclusive_; }
  /// Throws IoError when the lock was lost: somebody removed its file.
  void verify() const;

 private:
  bool is_ours() const;

  std::filesystem::path path_;
  Descriptor fd_;
  bool exclusive_ = false;
};

/// Files that another one names, for write_file(): what is done about them while other writers of
/// that file wait. `target` is where it goes.
struct Companions {
  /// Writes them, under names that nobody has.
  std::function<void(const std::filesystem::path& target)> write{};
  std::function<void()> discard{};  ///< takes them away: the file will not be there. May not throw
  std::function<void()> sweep{};    ///< the file is in place, durably
};

/// Writes beside, syncs, renames over check_destination(path): a reader sees the old file or the
/// new one, whole. Writers of one file queue. Throws IoError; the old file stays, unless the error
/// says otherwise.
void write_file(const std::filesystem::path& path, const std::function<void(FileWriter&)>& contents,
                const Companions& companions = {});

/// A system call of a save, about to be made.
struct DiskCall {
  std::string_view name;     ///< "open", "write", "fsync", "rename", "exchange", "mkdir", "unlink",
                             ///< "rmdir"; "read" of what is read back
  std::string_view path{};   ///< of the file or folder
  std::string_view to{};     ///< of rename and exchange: the other path
  std::string_view bytes{};  ///< of write
};

/// For tests. A result above 0 is the errno that the call then fails with; one below 0, -n, lets a
/// write take at most n bytes. The hook may also end the process. Null turns it off. Not
/// thread-safe.
using FaultHook = std::function<int(const DiskCall&)>;
void set_fault_hook(FaultHook hook);
/// Runs the hook: 0, or its result.
int injected_fault(const DiskCall& call);

/// Throws IoError: "cannot {verb} {path}: {strerror(error)}".
[[noreturn]] void throw_io(std::string_view verb, const std::filesystem::path& path, int error);

}  // namespace steep
