// Arrays that stay in their file, and are read each time that they are needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/disk.h"
#include "steep/tensor.h"

namespace steep {

/// An open file that must not change. Thread-safe.
class DataFile {
 public:
  /// `name`: for messages. Throws IoError.
  DataFile(Descriptor file, std::string name);
  /// Throws DataError if the file was written to since it was opened here, or cannot be read
  /// (kernels, which call this, have no IoError).
  void read(int64_t offset, void* to, size_t bytes) const;

 private:
  FileMark look() const;

  Descriptor fd_;
  std::string name_;
  FileMark first_;
};

/// A place in a file, as int64[2]: the file's number in this process, and an offset. The tensor
/// keeps the file open; a copy of its numbers does not. Thread-safe.
Tensor place_in(std::shared_ptr<const DataFile> file, int64_t offset);

/// Whether there are places. A provider that was loaded from a file has a list of open files of its
/// own, which is empty: it leaves nodes that read them to the host. Thread-safe.
bool has_places();

/// Reads what lies at a place. Throws as DataFile::read(), and InternalError for numbers of no open
/// file. Thread-safe.
void read_place(const int64_t* place, void* to, size_t bytes);

}  // namespace steep
