#include "model/read/external_data.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "model/read/quote.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr int kOpenFlags =
    O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;  // opening a FIFO must not block

[[noreturn]] void refuse(const std::string& tensor, const std::string& location, std::string why,
                         std::string remedy) {
  throw ModelError(
      {.what = "The external data of a tensor is refused: " + std::move(why) + ".",
       .node = quote(tensor),
       .expected = "a regular file with one name, in the model's own folder or below it",
       .received = "location \"" + quote(location) + "\"",
       .remedy = std::move(remedy)});
}

std::string error_text(int code) { return std::generic_category().message(code); }

/// The components of a location, after a check of the text alone.
std::vector<std::string> split(const std::string& tensor, const std::string& location) {
  const char* remedy = "Save the model again with its data beside it, under a plain file name.";
  if (location.empty()) refuse(tensor, location, "it has no location", remedy);
  if (location.find('\0') != std::string::npos) {
    refuse(tensor, location, "its location holds a NUL byte", remedy);
  }
  if (location.front() == '/') refuse(tensor, location, "its location is an absolute path", remedy);
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= location.size();) {
    const size_t end = std::min(location.find('/', begin), location.size());
    std::string part = location.substr(begin, end - begin);
    if (part == "..") refuse(tensor, location, "its location leaves the model's folder", remedy);
    if (!part.empty() && part != ".") parts.push_back(std::move(part));
    begin = end + 1;
  }
  if (parts.empty()) refuse(tensor, location, "its location is a folder", remedy);
  return parts;
}

std::string join(const std::vector<std::string>& parts) {
  std::string path;
  for (const std::string& part : parts) path += (path.empty() ? "" : "/") + part;
  return path;
}

/// For kernels before 5.6: opens one component at a time and refuses links. Returns -1 and sets
/// errno on failure.
int open_by_component(int folder, const std::vector<std::string>& parts) {
  int at = dup(folder);
  for (size_t i = 0; at >= 0 && i < parts.size(); ++i) {
    const bool leaf = i + 1 == parts.size();
    const int flags = O_NOFOLLOW | (leaf ? kOpenFlags : O_PATH | O_DIRECTORY | O_CLOEXEC);
    const int next = openat(at, parts[i].c_str(), flags);
    const int code = errno;
    close(at);
    errno = code;
    at = next;
  }
  return at;
}

int open_beneath(int folder, const std::vector<std::string>& parts) {
  open_how how{};
  how.flags = static_cast<uint64_t>(kOpenFlags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const std::string path = join(parts);
  const auto fd = static_cast<int>(syscall(SYS_openat2, folder, path.c_str(), &how, sizeof how));
  if (fd < 0 && (errno == ENOSYS || errno == EPERM)) return open_by_component(folder, parts);
  return fd;
}

}  // namespace

const ExternalData::File& ExternalData::open(const std::string& name, const std::string& location) {
  if (auto it = files_.find(location); it != files_.end()) return it->second;
  if (folder_.empty()) {
    refuse(name, location, "the model came as bytes, so it has no folder",
           "Import the model from its path, or give the folder that holds its data.");
  }
  const std::vector<std::string> parts = split(name, location);
  if (at_.get() < 0) at_ = Descriptor(::open(folder_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (at_.get() < 0) {
    throw IoError({.what = "The model's folder cannot be opened: " + error_text(errno) + ".",
                   .node = quote(folder_.string())});
  }
  File file{Descriptor(open_beneath(at_.get(), parts))};
  if (file.fd.get() < 0) {
    const int code = errno;
    if (code == ELOOP || code == EXDEV || code == ENOTDIR) {
      refuse(name, location, "it is reached through a symbolic link, or leaves the model's folder",
             "Replace the link by the file itself.");
    }
    refuse(name, location, "the file cannot be opened: " + error_text(code),
           "Put the model's data file back beside the model.");
  }
  struct stat info {};
  std::string why;
  if (fstat(file.fd.get(), &info) != 0) {
    why = error_text(errno);
  } else if (!S_ISREG(info.st_mode)) {
    why = "it is not a regular file";
  } else if (info.st_nlink != 1) {
    why = "the file has other names too (hard links)";
  }
  if (!why.empty())
    refuse(name, location, why, "Copy the data into a file of its own beside the model.");
  file.mark = mark_of(info);
  const auto before = expected_.find(location);
  if (before != expected_.end() && !(before->second == file.mark)) {
    throw DataError(
        {.what = "External data of the model was written to, or replaced, since it was read.",
         .node = quote(name),
         .expected =
             fmt::format("the file of {} that was read", counted(before->second.size, "byte")),
         .received = fmt::format("another file, or a later state, of {}, \"{}\"",
                                 counted(file.mark.size, "byte"), quote(location)),
         .remedy = "Put the file back; or train again, from the model as it is now."});
  }
  return files_.emplace(location, std::move(file)).first->second;
}

std::shared_ptr<const DataFile> ExternalData::keep(const std::string& name,
                                                   const std::string& location) {
  Descriptor fd(fcntl(open(name, location).fd.get(), F_DUPFD_CLOEXEC, 0));
  const std::string path = (folder_ / location).string();
  if (fd.get() < 0) throw_io("keep open", path, errno);
  return std::make_shared<const DataFile>(std::move(fd), path);
}

FileMarks ExternalData::marks() const {
  FileMarks result;
  for (const auto& [location, file] : files_) result[location] = file.mark;
  return result;
}

const ExternalData::File& ExternalData::find(const std::string& name, const ExternalSlice& slice,
                                             int64_t bytes, const std::string& type) {
  const File& file = open(name, slice.location);
  if (slice.length >= 0 && slice.length != bytes) {
    throw ModelError({.what = "The external data of a tensor has the wrong length.",
                      .node = quote(name),
                      .expected = fmt::format("{}{}", counted(bytes, "byte"), type),
                      .received = fmt::format("length {}", slice.length),
                      .remedy = "Save the model and its data again, together."});
  }
  if (slice.offset < 0 || slice.offset > file.mark.size || bytes > file.mark.size - slice.offset) {
    throw ModelError(
        {.what = "The external data of a tensor lies beyond the end of its file.",
         .node = quote(name),
         .expected = fmt::format("{} at offset {}", counted(bytes, "byte"), slice.offset),
         .received = fmt::format("a file of {}, \"{}\"", counted(file.mark.size, "byte"),
                                 quote(slice.location)),
         .remedy = "Check that the whole data file was copied."});
  }
  return file;
}

namespace {

void read_at(int fd, const std::string& name, const ExternalSlice& slice, int64_t first, void* to,
             int64_t bytes) {
  for (int64_t offset = 0; offset < bytes;) {
    const ssize_t n = pread(fd, static_cast<char*>(to) + offset,
                            static_cast<size_t>(bytes - offset), slice.offset + first + offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw IoError({.what = "External data cannot be read: " +
                             (n < 0 ? error_text(errno) : std::string("the file shrank")) + ".",
                     .node = quote(name),
                     .received = "location \"" + quote(slice.location) + "\""});
    }
    offset += n;
  }
}

}  // namespace

Tensor ExternalData::read(const std::string& name, const ExternalSlice& slice, DType dtype,
                          Dims dims) {
  const int64_t count = element_count(dims);
  int64_t size = 0;
  if (__builtin_mul_overflow(count, static_cast<int64_t>(size_of(dtype)), &size)) size = INT64_MAX;
  const File& file =
      find(name, slice, size, fmt::format(" for {}{}", name_of(dtype), to_string(dims)));
  Tensor tensor = Tensor::empty(dtype, std::move(dims));
  read_at(file.fd.get(), name, slice, 0, tensor.data(), size);
  return tensor;
}

void ExternalData::check(const std::string& name, const ExternalSlice& slice, int64_t bytes) {
  find(name, slice, bytes, "");
}

void ExternalData::read_part(const std::string& name, const ExternalSlice& slice, int64_t first,
                             void* to, int64_t count) {
  read_at(open(name, slice.location).fd.get(), name, slice, first, to, count);
}

}  // namespace steep
