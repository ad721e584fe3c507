#include "runtime/memory.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(pool->bytes_idle(), 23 * kMiB);
}

TEST(MemoryPool, BlocksOfShapesThatAreGoneGoBackToTheSystem) {
  auto pool = MemoryPool::create();
  for (size_t size = 2; size <= 1024; size *= 2) {
    for (int i = 0; i < 10; ++i) pool->allocate(size * kMiB / 16);
  }
  EXPECT_EQ(pool->bytes_in_use(), 0U);
  EXPECT_EQ(pool->bytes_idle(), 64 * kMiB);
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
