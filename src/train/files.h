// Files, with every failure an exception and every write durable before its name appears.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace steep {

/// Bytes at offsets: a file, or memory (tests, bytes that came from elsewhere).
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  virtual const std::string& name() const = 0;
  /// Throws DataError when [offset, offset + size) is not inside, IoError when reading fails.
  void read(uint64_t offset, void* out, size_t size) const;

 protected:
  virtual void read_inside(uint64_t offset, void* out, size_t size) const = 0;
};

class FileSource : public ByteSource {
 public:
  /// Regular files only. Throws IoError.
  explicit FileSource(const std::filesystem::path& path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }

 protected:
  void read_inside(uint64_t offset, void* out, size_t size) const override;

 private:
  std::string name_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// Borrows the bytes.
class MemorySource : public ByteSource {
 public:
  MemorySource(std::span<const std::byte> bytes, std::string name)
      : bytes_(bytes), name_(std::move(name)) {}
  uint64_t size() const override { return bytes_.size(); }
  const std::string& name() const override { return name_; }

 protected:
  void read_inside(uint64_t offset, void* out, size_t size) const override;

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
};

/// Sum over a whole source, read once, in order.
uint32_t crc32c_of(const ByteSource& source);

/// A new file, written once from front to back.
class FileWriter {
 public:
  /// Throws IoError when the file exists or cannot be created.
  explicit FileWriter(const std::filesystem::path& path);
  /// Closes; what was not finished with sync() may be lost.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// The bytes are on disk when it returns. Throws IoError (also for errors of earlier writes).
  void sync();
  uint64_t bytes() const { return bytes_; }
  uint32_t crc() const { return crc_; }

 private:
  std::string name_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
  uint32_t crc_ = 0;
};

/// Makes renames and new names inside `folder` durable.
void sync_folder(const std::filesystem::path& folder);

/// rename(2). Throws IoError.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Swaps two names in one atomic step. False when the file system cannot; throws IoError otherwise.
bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);

/// Writes beside, syncs, renames over `path`: a reader sees the old file or the new one, whole.
void write_file(const std::filesystem::path& path,
                const std::function<void(FileWriter&)>& contents);

/// For tests: called before each system call that changes the disk, with its name ("write",
/// "fsync", "rename", …). A result other than 0 is the errno that the call then fails with; the
/// hook may also end the process. Null turns it off. Not thread-safe.
using FaultHook = std::function<int(std::string_view call)>;
void set_fault_hook(FaultHook hook);
/// Runs the hook: 0, or the error to report.
int injected_fault(std::string_view call);

/// Throws IoError: "cannot {verb} {path}: {strerror(error)}".
[[noreturn]] void throw_io(std::string_view verb, const std::filesystem::path& path, int error);

}  // namespace steep
