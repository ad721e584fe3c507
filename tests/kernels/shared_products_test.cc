// Equal products share one kernel of oneDNN.

#include <malloc.h>
#include <omp.h>

#include <array>
#include <cstdlib>
#include <thread>
#include <vector>

#include "kernels/run_kernel.h"

namespace steep::test {
namespace {

NodeSpec product(const Attrs& attrs, int64_t rows) {
  return {.name = "product",
          .op = "steep.MatMul",
          .attrs = attrs,
          .inputs = {{DType::f32, {rows, 96}}, {DType::f32, {96, 160}}},
          .outputs = {{DType::f32, {rows, 160}}}};
}

Tensor run(const cpu::Kernel& kernel, const Tensor& a, const Tensor& b, int64_t rows) {
  Tensor y = Tensor::zeros(DType::f32, {rows, 160});
  const Tensor scratch = Tensor::zeros(DType::u8, {static_cast<int64_t>(kernel.scratch_bytes)});
  const std::array<const void*, 4> in{a.data(), b.data(), nullptr, nullptr};
  const std::array<void*, 1> out{y.data()};
  kernel.execute({in.data(), out.data(), const_cast<void*>(scratch.data())});
  return y;
}

/// Bytes of malloc in use. Stays the same with the malloc of a sanitizer.
size_t used() { return mallinfo2().uordblks; }

bool says_what_is_used() {
  const size_t before = used();
  void* volatile block = std::malloc(4096);
  const bool says = used() != before;
  std::free(block);
  return says;
}

class SharedProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kOneDnn) GTEST_SKIP() << "without oneDNN";
  }

  std::unique_ptr<cpu::Kernel> make(int64_t rows) const {
    std::string why_not;
    cpu::MadeKernel made = cpu::make_kernel(product(attrs_, rows), "onednn", &why_not);
    EXPECT_NE(made.kernel, nullptr) << why_not;
    return std::move(made.kernel);
  }

  const Attrs attrs_{
      {"alpha", 1.0}, {"activation", std::string()}, {"dtype", static_cast<int64_t>(DType::f32)}};
  const Tensor b_ = random_tensor(DType::f32, {96, 160}, 2);
};

TEST_F(SharedProducts, ManyEqualOnesTakeLittleMemory) {
  if (!says_what_is_used()) GTEST_SKIP() << "another malloc";
  const auto first = make(128);
  const size_t before = used();
  std::vector<std::unique_ptr<cpu::Kernel>> others;
  for (int i = 0; i < 200; ++i) others.push_back(make(128));
  EXPECT_LT(used(), before + 200 * size_t{512});
}

TEST_F(SharedProducts, OutliveEachOther) {
  const Tensor a = random_tensor(DType::f32, {128, 96}, 1);
  auto first = make(128);
  const auto second = make(128);
  const Tensor want = run(*first, a, b_, 128);
  first.reset();
  expect_same_bits(want, run(*second, a, b_, 128));
  const auto other = make(64);  // of another shape
  const Tensor half = random_tensor(DType::f32, {64, 96}, 1);
  expect_same_bits(run(*make(64), half, b_, 64), run(*other, half, b_, 64));
}

TEST_F(SharedProducts, RunInAnotherThread) {
  const Tensor a = random_tensor(DType::f32, {128, 96}, 1);
  std::unique_ptr<cpu::Kernel> kernel;
  std::thread maker([&] { kernel = make(128); });
  maker.join();
  const auto own = make(128);
  expect_same_bits(run(*own, a, b_, 128), run(*kernel, a, b_, 128));
}

TEST_F(SharedProducts, AreOfOneNumberOfThreads) {
  const Tensor a = random_tensor(DType::f32, {128, 96}, 1);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(2);
  const auto two = make(128);
  const Tensor want = run(*two, a, b_, 128);
  omp_set_num_threads(1);
  const size_t before = used();
  const auto one = make(128);
  if (says_what_is_used()) {
    EXPECT_GT(used(), before + size_t{1024});  // a kernel of its own
  }
  expect_same_bits(want, run(*one, a, b_, 128));
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace steep::test
