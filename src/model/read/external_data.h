// Tensor data that lies in files beside the model. The one place that opens them.
// (ONNX, docs/ExternalData.md and docs/ExternalDataSecurity.md.)
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "steep/tensor.h"

namespace steep {

/// What a tensor says of its data: location relative to the model's folder, offset, length (-1: to
/// be inferred).
struct ExternalSlice {
  std::string location;
  int64_t offset = 0;
  int64_t length = -1;
};

/// Opens files of one folder and keeps them open while it lives. Reads nothing outside the folder:
/// `..`, absolute paths, symbolic links (the file's or a folder's on the way), hard links and
/// everything that is no regular file are refused. The folder itself is trusted, links and all. Not
/// thread-safe.
class ExternalData {
 public:
  /// An empty folder: every read is refused.
  explicit ExternalData(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~ExternalData();
  ExternalData(const ExternalData&) = delete;
  ExternalData& operator=(const ExternalData&) = delete;

  /// Fills a fresh tensor. `name` is for messages. Throws ModelError for anything unsafe or too
  /// short, before memory is taken; IoError when the device fails.
  Tensor read(const std::string& name, const ExternalSlice& slice, DType dtype, Dims dims);
  /// Throws as read() of `bytes` bytes would, and reads nothing.
  void check(const std::string& name, const ExternalSlice& slice, int64_t bytes);
  /// Copies `count` bytes at `first` of what check() took out. Throws as read().
  void read_part(const std::string& name, const ExternalSlice& slice, int64_t first, void* to,
                 int64_t count);

 private:
  struct File {
    int fd = -1;
    int64_t size = 0;
  };
  const File& open(const std::string& name, const std::string& location);
  const File& find(const std::string& name, const ExternalSlice& slice, int64_t bytes,
                   const std::string& type);

  std::filesystem::path folder_;
  int folder_fd_ = -1;
  std::map<std::string, File> files_;
};

}  // namespace steep
