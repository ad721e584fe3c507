// Reads bytes from files and from memory. runtime/disk.h writes files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "runtime/disk.h"

namespace steep {

/// Bytes at offsets, in a file or in memory.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  virtual const std::string& name() const = 0;
  /// Throws DataError if [offset, offset + size) is out of range, IoError if reading fails.
  void read(uint64_t offset, void* out, size_t size) const;

 protected:
  virtual void read_inside(uint64_t offset, void* out, size_t size) const = 0;
};

class FileSource : public ByteSource {
 public:
  /// Throws IoError, also if it is not a regular file.
  explicit FileSource(const std::filesystem::path& path);
  /// Opens the file `name` in the open folder `folder`. Messages name it `path`.
  FileSource(int folder, const std::string& name, const std::filesystem::path& path);

  uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  /// Maps the whole file: the system reads its pages when they are used. Writing to the pages does
  /// not change the file. The file must not become shorter. Throws IoError.
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

/// The checksum of a whole source, which is read once, in order.
uint32_t crc32c_of(const ByteSource& source);

}  // namespace steep
