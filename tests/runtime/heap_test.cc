#include "runtime/heap.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <vector>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace steep {
namespace {

#ifdef __GLIBC__
constexpr size_t kMiB = size_t{1} << 20;

/// Bytes of this process in physical memory.
size_t resident() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(Heap, TrimmingReturnsWhatWasFreedBetweenLiveBlocks) {
  if (mallinfo2().uordblks == 0) GTEST_SKIP() << "malloc is not glibc's";
  constexpr size_t kBlock = size_t{32} << 10;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (size_t i = 0; i < 64 * kMiB / kBlock; ++i) {
    blocks.push_back(std::make_unique<char[]>(kBlock));
    std::memset(blocks.back().get(), 1, kBlock);
  }
  for (size_t i = 0; i + 1 < blocks.size(); ++i) blocks[i].reset();  // the last one stays
  const size_t before = resident();
  trim_heap();
  EXPECT_LT(resident() + 32 * kMiB, before);
}
#endif

}  // namespace
}  // namespace steep
