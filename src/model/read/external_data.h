// Tensor data in external files beside the model. Only this code opens such files. (ONNX,
// docs/ExternalData.md and docs/ExternalDataSecurity.md.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "data/file_places.h"
#include "runtime/disk.h"
#include "steep/tensor.h"

namespace steep {

/// A tensor's reference to external data: location relative to the model's folder, offset, length
/// (-1: inferred).
struct ExternalSlice {
  std::string location;
  int64_t offset = 0;
  int64_t length = -1;
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
  /// The file at `location`, which stays open for whoever holds the result. check() must have
  /// accepted a slice of it. Throws IoError.
  std::shared_ptr<const DataFile> keep(const std::string& name, const std::string& location);
  /// Of the files that are open.
  FileMarks marks() const;

 private:
  struct File {
    Descriptor fd;
    FileMark mark{};
  };
  const File& open(const std::string& name, const std::string& location);
  const File& find(const std::string& name, const ExternalSlice& slice, int64_t bytes,
                   const std::string& type);

  std::filesystem::path folder_;
  FileMarks expected_;
  Descriptor at_;  ///< the folder
  std::map<std::string, File> files_;
};

}  // namespace steep
