// Bytes that are read: of a file, or of memory. What writes files is in runtime/disk.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "runtime/disk.h"

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
  /// The file `name` of the opened folder `folder`, which is `shown` in messages.
  FileSource(int folder, const std::string& name, const std::filesystem::path& shown);

  uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  /// All of its bytes, as pages that the system reads when they are used; what is written there
  /// does not reach the file. The file must not become shorter. Throws IoError.
  std::shared_ptr<void> map() const;

 protected:
  void read_inside(uint64_t offset, void* out, size_t size) const override;

 private:
  std::string name_;
  Descriptor fd_;
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

}  // namespace steep
