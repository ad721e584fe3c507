#include "runtime/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <set>
#include <vector>

namespace steep {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(MemoryPool, AStepFindsItsBlocksAgainThoughNotAllLiveAtOnce) {
  auto pool = MemoryPool::create();
  auto step = [&] {
    std::set<void*> blocks;
    auto arena = pool->allocate(4 * kMiB);
    blocks.insert(arena.get());
    blocks.insert(pool->allocate(16 * kMiB).get());  // an output, dropped before backward
    std::vector<std::shared_ptr<void>> gradients;
    gradients.reserve(3);
    for (int i = 0; i < 3; ++i) gradients.push_back(pool->allocate(kMiB));
    for (const auto& g : gradients) blocks.insert(g.get());
    return blocks;
  };
  const std::set<void*> first = step();
  EXPECT_EQ(first.size(), 5U);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(step(), first);
}

/// Bytes of this process in physical memory.
size_t resident() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(MemoryPool, BlocksOfShapesThatAreGoneGoBackToTheSystem) {
  auto pool = MemoryPool::create();
  const size_t before = resident();
  for (size_t size = 2; size <= 1024; size *= 2) {
    for (int i = 0; i < 10; ++i) pool->allocate(size * kMiB / 16);
  }
  EXPECT_EQ(pool->peak_bytes_in_use(), 64 * kMiB);
  EXPECT_LT(resident(), before + 80 * kMiB);  // of 127 MiB in all
}

TEST(MemoryPool, IdleBlocksGoBackToTheSystemOnRequest) {
  auto pool = MemoryPool::create();
  const auto used = pool->allocate(16 * kMiB);
  pool->allocate(64 * kMiB);
  pool->allocate(64);
  const size_t before = resident();
  pool->release_idle();
  EXPECT_LT(resident() + 60 * kMiB, before);
  static_cast<char*>(used.get())[0] = 1;  // still there
  pool->release_idle();
  EXPECT_NE(pool->allocate(64 * kMiB), nullptr);
}

TEST(MemoryPool, ShapesThatRiseLeaveFewBlocks) {
  auto pool = MemoryPool::create();
  const size_t before = resident();
  constexpr size_t kPage = 4096;
  for (size_t size = kMiB; size < kMiB + 150 * kPage; size += kPage) {
    const auto arena = pool->allocate(size);
    pool->allocate(size);
  }
  EXPECT_LT(resident(), before + 100 * kMiB);  // of some 390 MiB in all
}

TEST(MemoryPool, ANearbySizeSharesABlock) {
  auto pool = MemoryPool::create();
  void* large = pool->allocate(10 * kMiB).get();
  EXPECT_EQ(pool->allocate(9 * kMiB).get(), large);
  EXPECT_NE(pool->allocate(4 * kMiB).get(), large);
}

TEST(MemoryPool, HandlesKeepThePoolAlive) {
  auto pool = MemoryPool::create();
  auto block = pool->allocate(100);
  pool.reset();
  static_cast<char*>(block.get())[99] = 1;
}

}  // namespace
}  // namespace steep
