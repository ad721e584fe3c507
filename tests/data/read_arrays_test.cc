#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/crc32c.h"
#include "steep/data.h"
#include "steep/error.h"

namespace steep {
namespace {

std::vector<int64_t> flat(const Tensor& t) { return t.to_ints(); }

TEST(Crc32c, IsTheStandards) {
  EXPECT_EQ(crc32c(0, "123456789", 9), 0xe3069283u);  // RFC 3720's check value
  const std::string zeros(32, '\0');
  EXPECT_EQ(crc32c(0, zeros.data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(crc32c(0, "1234", 4), "56789", 5), 0xe3069283u);
}

TEST(Rows, AreViewsAndCopies) {
  const Tensor t = Tensor::from<int64_t>({0, 1, 2, 3, 4, 5}, {3, 2});
  EXPECT_EQ(flat(rows(t, 1, 3)), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(static_cast<const void*>(rows(t, 1, 3).data()),
            static_cast<const int64_t*>(t.data()) + 2);
  EXPECT_EQ(rows(t, 1, 1).dims(), (Dims{0, 2}));
  EXPECT_EQ(flat(take_rows(t, {2, 0, 2})), (std::vector<int64_t>{4, 5, 0, 1, 4, 5}));
  EXPECT_THROW(rows(t, 2, 4), ShapeError);
  EXPECT_THROW(rows(t, -1, 1), ShapeError);
  EXPECT_THROW(take_rows(t, {3}), ShapeError);
  EXPECT_THROW(rows(Tensor::scalar(1.0f), 0, 1), ShapeError);
}

TEST(Batches, CoverEachRowOnce) {
  std::vector<int64_t> numbers(10);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i);
  const Tensor x = Tensor::from(numbers, {10});
  Batches batches({x, x}, {.batch_size = 4, .seed = 3});
  ASSERT_EQ(batches.count(), 3);
  std::multiset<int64_t> seen;
  for (int64_t i = 0; i < 3; ++i) {
    const auto batch = batches.get(0, i);
    EXPECT_EQ(flat(batch[0]), flat(batch[1]));
    for (int64_t v : flat(batch[0])) seen.insert(v);
  }
  EXPECT_EQ(seen, std::multiset<int64_t>(numbers.begin(), numbers.end()));
  EXPECT_EQ(Batches({x}, {.batch_size = 4, .drop_last = true}).count(), 2);
}

TEST(Batches, OrderDependsOnSeedAndEpochAlone) {
  std::vector<int64_t> numbers(100);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i);
  const Tensor x = Tensor::from(numbers, {100});
  auto order = [&](uint64_t seed, int64_t epoch) {
    return flat(Batches({x}, {.batch_size = 100, .seed = seed}).get(epoch, 0)[0]);
  };
  EXPECT_EQ(order(1, 5), order(1, 5));
  EXPECT_NE(order(1, 5), order(1, 6));
  EXPECT_NE(order(1, 5), order(2, 5));
  EXPECT_NE(order(1, 5), numbers);
  Batches walked({x}, {.batch_size = 100, .seed = 1});
  for (int64_t epoch = 0; epoch < 5; ++epoch) walked.get(epoch, 0);
  EXPECT_EQ(flat(walked.get(5, 0)[0]), order(1, 5));
  EXPECT_EQ(flat(Batches({x}, {.batch_size = 100, .shuffle = false}).get(3, 0)[0]), numbers);
}

TEST(Batches, RefuseWhatDoesNotFit) {
  const Tensor two = Tensor::zeros(DType::f32, {2, 3}), three = Tensor::zeros(DType::f32, {3});
  EXPECT_THROW(Batches({two, three}, {}), ShapeError);
  EXPECT_THROW(Batches({}, {}), DataError);
  EXPECT_THROW(Batches({Tensor::zeros(DType::f32, {0, 3})}, {}), DataError);
  EXPECT_THROW(Batches({two}, {.batch_size = 3, .drop_last = true}), DataError);
  EXPECT_THROW(Batches({two}, {.batch_size = 0}), DataError);
  EXPECT_THROW(Batches({two}, {}).get(0, 1), DataError);
  Batches one({two}, {.batch_size = INT64_MAX});
  EXPECT_EQ(one.count(), 1);
  EXPECT_EQ(one.get(0, 0)[0].dims(), (Dims{2, 3}));
}

}  // namespace
}  // namespace steep
