// operator new for the fuzz targets. The sanitizer's own terminates the process when memory runs
// out; this one throws, like the library's, so that the engine's handling is tested as well.
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kMax = std::size_t{256} << 20;

void* take(std::size_t bytes) {
  void* p = bytes <= kMax ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

// The fuzzer contains its own C++ library, so that its new may be paired with this delete.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "alloc_dealloc_mismatch=0"; }

void* operator new(std::size_t bytes) { return take(bytes); }
void* operator new[](std::size_t bytes) { return take(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
