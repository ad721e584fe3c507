// Tensor data in external files beside the model. Only this code opens such files. (ONNX,
// docs/ExternalData.md and docs/ExternalDataSecurity.md.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "steep/tensor.h"

namespace steep {

/// A tensor's reference to external data: location relative to the model's folder, offset, length
/// (-1: inferred).
struct ExternalSlice {
  std::string location;
  int64_t offset = 0;
  int64_t length = -1;
};

/// Which file it is, and its state: two that are equal have the same bytes.
struct FileMark {
  uint64_t device = 0, inode = 0;
  int64_t size = 0;
  int64_t seconds = 0, nanoseconds = 0;  ///< when it was last written to
  bool operator==(const FileMark&) const = default;
};
/// By location.
using FileMarks = std::map<std::string, FileMark>;

/// Opens files of one folder and keeps them open while it lives. Reads nothing outside the folder:
/// refuses `..`, absolute paths, symbolic links (of the file or of a folder on the way), hard links
/// and everything that is not a regular file. The folder itself is trusted and may be a link. Not
/// thread-safe.
class ExternalData {
 public:
  /// With an empty folder every read is refused. `expected`: files that were read before; another
  /// file, or one that was written to, is a DataError.
  explicit ExternalData(std::filesystem::path folder, FileMarks expected = {})
      : folder_(std::move(folder)), expected_(std::move(expected)) {}
  ~ExternalData();
  ExternalData(const ExternalData&) = delete;
  ExternalData& operator=(const ExternalData&) = delete;

  /// Reads into a new tensor. `name` is used in messages. Throws ModelError for unsafe or truncated
  /// data before it allocates; IoError when the device fails.
  Tensor read(const std::string& name, const ExternalSlice& slice, DType dtype, Dims dims);
  /// Throws what read() of `bytes` bytes would throw, without reading.
  void check(const std::string& name, const ExternalSlice& slice, int64_t bytes);
  /// Copies `count` bytes, from offset `first` of the slice. check() must have accepted the slice.
  /// Throws as read().
  void read_part(const std::string& name, const ExternalSlice& slice, int64_t first, void* to,
                 int64_t count);
  /// Of the files that are open.
  FileMarks marks() const;

 private:
  struct File {
    int fd = -1;
    FileMark mark{};
  };
  const File& open(const std::string& name, const std::string& location);
  const File& find(const std::string& name, const ExternalSlice& slice, int64_t bytes,
                   const std::string& type);

  std::filesystem::path folder_;
  FileMarks expected_;
  int folder_fd_ = -1;
  std::map<std::string, File> files_;
};

}  // namespace steep
