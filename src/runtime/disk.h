// Makes all system calls that change the disk. Every failure is an exception, and every write is
// durable before its name appears. Only regular files are replaced.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace steep {

/// A file descriptor, closed by the destructor.
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

/// Which file it is, and its state. Two that are equal are taken for the same bytes: a file that is
/// written to within one tick of the clock, or whose time is set back, is not noticed.
struct FileMark {
  uint64_t device = 0, inode = 0;
  int64_t size = 0;
  int64_t seconds = 0, nanoseconds = 0;  ///< when it was last written to
  bool operator==(const FileMark&) const = default;
};
FileMark mark_of(const struct stat& info);

/// The target of `path` after all symbolic links, whether it exists or not. Throws IoError for a
/// cycle of links.
std::filesystem::path follow_links(std::filesystem::path path);

/// The path at which write_file(path) writes: follow_links(path). Throws IoError if write_file()
/// would refuse it: a device, FIFO, socket or folder, also at the end of links; a parent that does
/// not exist or is not writable; a name that is too long. Leaves no files.
std::filesystem::path check_destination(const std::filesystem::path& path);

/// `path`, and its target if it is a link. For messages.
std::string destination_text(const std::filesystem::path& path);

/// A new file that is written once, in order.
class FileWriter {
 public:
  /// Throws IoError if the file exists or cannot be created.
  explicit FileWriter(const std::filesystem::path& path);

  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Waits until all bytes are on disk. Throws IoError, also for errors of earlier writes.
  void sync();
  uint64_t bytes() const { return bytes_; }
  uint32_t crc() const { return crc_; }

 private:
  std::string name_;
  Descriptor fd_;
  uint64_t bytes_ = 0;
  uint32_t crc_ = 0;
};

/// Makes renames and new names in `folder` durable.
void sync_folder(const std::filesystem::path& folder);

/// sync_folder() of the parent of `path`, after a file was moved there. Its error says that the
/// file is in place.
void sync_parent(const std::filesystem::path& path);

/// mkdir(2). False if the name exists; throws IoError for other failures.
bool make_folder(const std::filesystem::path& folder);

/// Makes `folder`, an absolute path, and its parents, durably. Throws IoError.
void make_folders(const std::filesystem::path& folder);

/// unlink(2) or rmdir(2). False if it fails.
bool remove_file(const std::filesystem::path& path);
bool remove_folder(const std::filesystem::path& path);

/// rename(2). Throws IoError.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Swaps two names in one atomic step. False if the file system cannot do that; throws IoError for
/// other failures.
bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);

/// A path beside `target` that does not exist: target + `mark` + 16 digits.
std::filesystem::path unused_name(const std::filesystem::path& target, std::string_view mark);

/// A lock for writing at `target`: other writers, in this process or another, wait. It is flock(2)
/// on the file TARGET.steep-lock, which the destructor removes. If a process is killed, the lock is
/// released, and the next writer takes over the file. On file systems without locks no writer
/// waits.
class DiskLock {
 public:
  /// Throws IoError if the file cannot be made, or if the lock is not free within `patience`.
  explicit DiskLock(const std::filesystem::path& target,
                    std::chrono::milliseconds patience = std::chrono::minutes(10));
  ~DiskLock();
  DiskLock(const DiskLock&) = delete;
  DiskLock& operator=(const DiskLock&) = delete;

  /// Whether the lock is held: then files beside `target` are remains of killed processes.
  bool exclusive() const { return exclusive_; }
  /// Throws IoError if the lock was lost because its file was removed.
  void verify() const;

 private:
  bool is_ours() const;

  std::filesystem::path path_;
  Descriptor fd_;
  bool exclusive_ = false;
};

/// The actions of write_file() on other files that belong to the written one. They run while other
/// writers of that file wait. `target` is the path of the file.
struct Companions {
  /// Writes the other files, under unused names.
  std::function<void(const std::filesystem::path& target)> write{};
  std::function<void()> discard{};  ///< removes them if the write failed. Must not throw
  std::function<void()> sweep{};    ///< called when the file is in place, durably
};

/// Writes a temporary file beside the target, syncs it, and renames it to check_destination(path).
/// Readers see the complete old file or the complete new one. Writers of one file wait for each
/// other. Throws IoError; then the old file stays, unless the error says otherwise.
void write_file(const std::filesystem::path& path, const std::function<void(FileWriter&)>& contents,
                const Companions& companions = {});

/// A system call that is about to be made.
struct DiskCall {
  std::string_view name;     ///< "open", "write", "fsync", "rename", "exchange", "mkdir", "unlink",
                             ///< "rmdir"; "read" by a FileSource, "reserve" by move_to_file()
  std::string_view path{};   ///< of the file or folder
  std::string_view to{};     ///< of rename and exchange: the other path
  std::string_view bytes{};  ///< of write
};

/// For tests: called before each system call. A result above 0 is the errno with which the call
/// fails; -n lets a write take at most n bytes. The hook may also end the process. Null turns it
/// off. Not thread-safe.
using FaultHook = std::function<int(const DiskCall&)>;
void set_fault_hook(FaultHook hook);
/// Calls the hook. Returns its result; 0 without a hook.
int injected_fault(const DiskCall& call);

/// Throws IoError: "cannot {verb} {path}: {strerror(error)}".
[[noreturn]] void throw_io(std::string_view verb, const std::filesystem::path& path, int error);

}  // namespace steep
