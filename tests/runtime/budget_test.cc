#include "runtime/budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "device/boundary.h"
#include "providers/cpu/parallel.h"
#include "providers/cpu/window.h"
#include "runtime/memory.h"
#include "steep/tensor.h"

extern "C" const SteepProvider* steep_linked_provider(const SteepHost* host);

namespace steep {
namespace {

std::atomic<bool> stopping{false};

class Interrupts : public ::testing::Test {
 protected:
  void SetUp() override {
    stopping = false;
    set_interrupt_check([] { return stopping.load(); });
  }
  void TearDown() override { set_interrupt_check(nullptr); }

  /// Polls for longer than the interval between two checks.
  static void poll_for_long() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
    while (std::chrono::steady_clock::now() < end) poll();
  }
};

TEST_F(Interrupts, EndACallOnlyWithinABudget) {
  stopping = true;
  EXPECT_NO_THROW(poll_for_long());
  const Limits limits;
  const Budget budget(limits);
  {
    const Uninterrupted half_written;
    EXPECT_NO_THROW(poll_for_long());
  }
  EXPECT_THROW(poll_for_long(), InterruptedError);
  stopping = false;
  EXPECT_NO_THROW(poll_for_long());
}

TEST_F(Interrupts, EndEveryThreadOfALoop) {
  // The CPU's loops use the host table that they were given, as when a program is compiled.
  ASSERT_NE(steep_linked_provider(&host_table()), nullptr);
  const Limits limits;
  const Budget budget(limits);
  std::atomic<int64_t> turns{0};
  stopping = true;
  auto turn = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ++turns;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  EXPECT_THROW(cpu::parallel_for(100'000, 1, turn), InterruptedError);
  EXPECT_LT(turns, 10'000);
}

TEST(Budget, BoundsOneTensorAndNests) {
  Limits small, smaller;
  small.max_bytes = 4000;
  smaller.max_bytes = 400;
  const Budget outer(small);
  EXPECT_NO_THROW(Tensor::empty(DType::f32, {1000}));
  EXPECT_THROW(Tensor::empty(DType::f32, {1001}), OutOfMemoryError);
  {
    const Budget inner(smaller);
    EXPECT_THROW(Tensor::empty(DType::f32, {101}), OutOfMemoryError);
  }
  EXPECT_NO_THROW(Tensor::empty(DType::f32, {1000}));
}

TEST(Budget, BoundsWhatAPoolHolds) {
  const auto pool = MemoryPool::create(3 << 20);
  auto first = pool->allocate(1 << 20);
  auto second = pool->allocate(1 << 20);
  EXPECT_THROW(pool->allocate(3 << 19), OutOfMemoryError);
  EXPECT_THROW(pool->allocate(SIZE_MAX - 10), OutOfMemoryError);
  EXPECT_EQ(pool->peak_bytes_in_use(), size_t{2} << 20);  // refused bytes do not count
  second.reset();
  EXPECT_NO_THROW(pool->allocate(3 << 19));
}

TEST(Budget, SaysASizeOnce) {
  EXPECT_EQ(exact_bytes_text(395792), "395792 bytes");
  EXPECT_EQ(exact_bytes_text((1 << 20) - 1), "1048575 bytes");
  EXPECT_EQ(exact_bytes_text(3 << 19), "1.5 MiB (1572864 bytes)");
  EXPECT_EQ(exact_bytes_text(size_t{7} << 29), "3.5 GiB (3758096384 bytes)");
}

TEST(Budget, NamesTheNodeThatLacksMemory) {
  struct Node {
    std::string name() const { return "n"; }
    std::string op() const { return "Op"; }
  } const node;
  auto parts_of = [&](auto f) {
    try {
      at_node(node, f);
    } catch (const OutOfMemoryError& e) {
      return e.parts();
    }
    return ErrorParts{};
  };
  EXPECT_EQ(parts_of([] { throw std::bad_alloc(); }).op, "Op");
  EXPECT_EQ(parts_of([] { throw std::length_error("vector"); }).node, "n");
  EXPECT_EQ(parts_of([] { require_bytes(SIZE_MAX, "a table"); }).node, "n");
  EXPECT_EQ(
      parts_of([] { throw OutOfMemoryError({.what = "w", .node = "inner", .op = "Other"}); }).node,
      "inner");
}

TEST(Windows, BeyondSixtyBitsAreDeclined) {
  const Dims x{1, 1, 8};
  auto why_not = [&](Attrs attrs, int64_t kernel) {
    if (!attrs.has("auto_pad")) attrs.set("auto_pad", std::string("NOTSET"));
    std::string why;
    return cpu::read_window(attrs, x, x, {kernel}, &why) ? std::string() : why;
  };
  EXPECT_EQ(why_not({{"auto_pad", "SAME_UPPER"}}, int64_t{1} << 58), "");
  EXPECT_NE(why_not({{"auto_pad", "SAME_UPPER"}}, int64_t{1} << 62), "");
  EXPECT_NE(why_not({{"dilations", Ints{int64_t{1} << 40}}}, int64_t{1} << 40), "");
  EXPECT_NE(why_not({{"strides", Ints{int64_t{1} << 60}}}, 2), "");
  EXPECT_NE(why_not({{"pads", Ints{int64_t{1} << 61, 0}}}, 2), "");
}

TEST(Windows, TapsBeforeTheEndAreThoseCountedOneByOne) {
  for (int64_t kernel : {1, 2, 5, 9}) {
    for (int64_t dilation : {1, 3}) {
      for (int64_t stride : {1, 2, 4}) {
        for (int64_t pad : {0, 2, 7}) {
          const cpu::WindowAxis axis{.in = 7,
                                     .out = 4,
                                     .kernel = kernel,
                                     .stride = stride,
                                     .dilation = dilation,
                                     .pad_begin = pad,
                                     .pad_end = pad / 2};
          for (int64_t o = 0; o < axis.out; ++o) {
            int64_t count = 0;
            for (int64_t k = 0; k < kernel; ++k) count += axis.at(o, k) < axis.in + axis.pad_end;
            EXPECT_EQ(axis.taps_before_end(o), count);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace steep
