#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mirror.h"

namespace mirror {
namespace {

constexpr size_t kPage = 4096;

std::byte* map(size_t bytes, int protection, int file) {
  void* at = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

}  // namespace

Memory::Memory(size_t bytes)
    : bytes_((bytes + kPage - 1) / kPage * kPage), file_(memfd_create("mirror", MFD_CLOEXEC)) {
  // A file without a name: pages are allocated when they are written.
  const bool sized = file_ >= 0 && ftruncate(file_, static_cast<off_t>(bytes_)) == 0;
  outside_ = sized ? map(bytes_, PROT_NONE, file_) : nullptr;
  inside_ = sized ? map(bytes_, PROT_READ | PROT_WRITE, file_) : nullptr;
  if (outside_ != nullptr && inside_ != nullptr) return;
  if (outside_ != nullptr) munmap(outside_, bytes_);
  if (inside_ != nullptr) munmap(inside_, bytes_);
  if (file_ >= 0) close(file_);
  throw std::runtime_error("the system has no room for the memory of a device");
}

Memory::~Memory() {
  munmap(outside_, bytes_);
  munmap(inside_, bytes_);
  close(file_);
}

void* Memory::allocate(size_t bytes) {
  const size_t room = (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  size_t offset = 0;  // the first gap that is large enough
  for (const auto& [begin, end] : used_) {
    if (begin - offset >= room) break;
    offset = end;
  }
  if (room > bytes_ - offset) return nullptr;
  used_.emplace(offset, offset + room);
  return outside_ + offset;
}

void Memory::release(void* data) {
  const auto offset = static_cast<size_t>(static_cast<std::byte*>(data) - outside_);
  const std::lock_guard lock(mutex_);
  const auto it = used_.find(offset);
  if (it == used_.end()) return;
  // Returns the pages to the system; later reads of released memory give zeros.
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(it->second - offset));
  used_.erase(it);
}

}  // namespace mirror
