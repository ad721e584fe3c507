#include "data/file_places.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {

DataFile::DataFile(Descriptor file, std::string name)
    : fd_(std::move(file)), name_(std::move(name)), first_(look()) {}

FileMark DataFile::look() const {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw_io("read", name_, errno);
  return mark_of(info);
}

void DataFile::read(int64_t offset, void* to, size_t bytes) const {
  auto* p = static_cast<char*>(to);
  for (size_t done = 0; done < bytes;) {
    const int fault = injected_fault({.name = "read", .path = name_});
    errno = fault;
    const ssize_t count = fault > 0
                              ? -1
                              : ::pread(fd_.get(), p + done, bytes - done,
                                        static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw DataError(
          ErrorParts{.what = fmt::format("A weight cannot be read from {}: {}.", name_,
                                         count < 0 ? std::generic_category().message(errno)
                                                   : "the file is shorter than at first"),
                     .expected = fmt::format("{} at offset {}", counted(bytes, "byte"), offset),
                     .remedy = "Put the file back and start again."});
    }
    done += static_cast<size_t>(count);
  }
  // After the read: until here, the bytes were those of the first time.
  const FileMark now = look();
  if (now == first_) return;
  throw DataError(ErrorParts{
      .what = name_ + " was written to while its weights were in use.",
      .expected = fmt::format("the {} of the first time", counted(first_.size, "byte")),
      .received = fmt::format("a file of {}, written later", counted(now.size, "byte")),
      .remedy = "Put the file back and start again; write a new file beside it, not over it."});
}

namespace {

/// The open files by number. A number is never used again, so an old one cannot mean another file.
struct OpenFiles {
  std::mutex mutex;
  std::map<int64_t, std::weak_ptr<const DataFile>> by_number;
  int64_t last = 0;
};

OpenFiles& open_files() {
  static OpenFiles files;
  return files;
}

/// The numbers of a place, and the hold on its file.
struct Place {
  int64_t numbers[2];
  std::shared_ptr<const DataFile> file;
};

int64_t number_of(const std::shared_ptr<const DataFile>& file) {
  OpenFiles& files = open_files();
  const std::lock_guard lock(files.mutex);
  std::erase_if(files.by_number, [](const auto& entry) { return entry.second.expired(); });
  for (const auto& [number, other] : files.by_number) {
    if (other.lock() == file) return number;
  }
  files.by_number.emplace(++files.last, file);
  return files.last;
}

std::shared_ptr<const DataFile> file_of(int64_t number) {
  OpenFiles& files = open_files();
  const std::lock_guard lock(files.mutex);
  const auto found = files.by_number.find(number);
  return found == files.by_number.end() ? nullptr : found->second.lock();
}

}  // namespace

Tensor place_in(std::shared_ptr<const DataFile> file, int64_t offset) {
  const int64_t number = number_of(file);
  auto place = std::make_shared<Place>(Place{{number, offset}, std::move(file)});
  return Tensor::wrap(DType::i64, {2}, place->numbers, place);
}

bool has_places() {
  OpenFiles& files = open_files();
  const std::lock_guard lock(files.mutex);
  return !files.by_number.empty();
}

void read_place(const int64_t* place, void* to, size_t bytes) {
  const std::shared_ptr<const DataFile> file = file_of(place[0]);
  if (!file) {
    throw InternalError(ErrorParts{.what = "A place in a file outlived the file.",
                                   .received = fmt::format("number {}", place[0])});
  }
  file->read(place[1], to, bytes);
}

}  // namespace steep
