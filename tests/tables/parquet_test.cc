// Tables of a module: joined groups of rows, limits, and a module that gives what it did not
// promise. Python's tests read files (tests/python/program/test_parquet.py).
#include "tables/parquet.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "steep/error.h"

namespace steep {
namespace {

/// A table in memory, whose groups may be wrong.
struct FakeTable : TableModule {
  std::vector<TableColumn> about{{.name = "a", .dtype = DType::i64, .type = "int64"}};
  std::map<std::pair<int, int>, std::vector<int64_t>> numbers{};  // by group and column
  std::vector<int64_t> widths{1};
  int64_t row_count = 0;
  int group_count = 0;
  TableFailure failure{};

  const std::vector<TableColumn>& columns() const override { return about; }
  int64_t rows() const override { return row_count; }
  int groups() const override { return group_count; }
  TableFailure read(int group, int column, TableNumbers* result) override {
    const std::vector<int64_t>& values = numbers[{group, column}];
    const int64_t width = widths[static_cast<size_t>(group) % widths.size()];
    const auto count = static_cast<int64_t>(values.size());
    *result = {.data = values.data(), .rows = width == 0 ? 0 : count / width, .width = width};
    return failure;
  }
};

FakeTable two_groups() {
  FakeTable table;
  table.row_count = 3;
  table.group_count = 2;
  table.numbers[{0, 0}] = {1, 2};
  table.numbers[{1, 0}] = {3};
  return table;
}

std::string refusal(FakeTable table, const Limits& limits = {}) {
  try {
    read_table(table, "t.parquet", limits);
  } catch (const DataError& error) {
    EXPECT_TRUE(error.parts().what.starts_with("t.parquet ")) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "was read";
  return "";
}

TEST(Parquet, GroupsAreJoined) {
  FakeTable table = two_groups();
  const ParquetTable read = read_table(table, "t.parquet", {});
  ASSERT_EQ(read.columns.size(), 1U);
  const Tensor& values = read.columns[0].values;
  EXPECT_EQ(values.dims(), Dims{3});
  EXPECT_EQ(values.data<int64_t>()[2], 3);
}

TEST(Parquet, OnlyWantedColumnsAreRead) {
  FakeTable table = two_groups();
  table.about.push_back({.name = "b", .dtype = DType::i64, .type = "int64"});  // without numbers
  EXPECT_NE(refusal(table).find("wrong number of rows in column 'b'"), std::string::npos);
  const std::set<std::string> wanted{"a", "c"};
  const ParquetTable read = read_table(table, "t.parquet", {.max_bytes = 24}, &wanted);
  ASSERT_EQ(read.columns.size(), 2U);
  EXPECT_EQ(read.columns[0].values.size(), 3);
  EXPECT_EQ(read.columns[1].name, "b");
  EXPECT_EQ(read.columns[1].values.dtype(), DType::undefined);
}

TEST(Parquet, ListsHaveOneLength) {
  FakeTable table = two_groups();
  table.about[0].list = true;
  table.numbers[{0, 0}] = {1, 2, 3, 4};
  table.numbers[{1, 0}] = {5, 6};
  table.widths = {2};
  EXPECT_EQ(read_table(table, "t.parquet", {}).columns[0].values.dims(), (Dims{3, 2}));
  table.widths = {2, 1};
  EXPECT_NE(refusal(table).find("different lengths in column 'a', row 3"), std::string::npos);
}

TEST(Parquet, OtherTypesAreLeftOut) {
  FakeTable table = two_groups();
  table.about.push_back({.name = "id", .type = "string"});
  EXPECT_EQ(read_table(table, "t.parquet", {}).others.at("id"), "string");
  table.about.erase(table.about.begin());
  EXPECT_NE(refusal(table).find("has no column that is read"), std::string::npos);
}

TEST(Parquet, RefusesWhatDoesNotSuit) {
  const auto changed = [](auto change) {
    FakeTable table = two_groups();
    change(table);
    return table;
  };
  const std::pair<FakeTable, const char*> cases[] = {
      {changed([](FakeTable& t) { t.row_count = 0; }), "has no rows"},
      {changed([](FakeTable& t) { t.row_count = -1; }), "has no rows"},
      {changed([](FakeTable& t) { t.row_count = 2; }), "wrong number of rows in column 'a'"},
      {changed([](FakeTable& t) { t.row_count = 4; }), "wrong number of rows in column 'a'"},
      {changed([](FakeTable& t) { t.row_count = int64_t{1} << 60; }), "exceeds the memory limit"},
      {changed([](FakeTable& t) { t.about.push_back(t.about[0]); }), "two columns of one name"},
      {changed([](FakeTable& t) { t.failure.what = "has a null in row 2, column 'a'"; }),
       "has a null in row 2, column 'a'"}};
  for (const auto& [table, why] : cases)
    EXPECT_NE(refusal(table).find(why), std::string::npos) << why;
  EXPECT_NE(refusal(two_groups(), {.max_bytes = 20}).find("exceeds the memory limit"),
            std::string::npos);
  FakeTable wide = two_groups();
  wide.about.push_back({.name = "b", .dtype = DType::i64, .type = "int64"});
  EXPECT_NE(refusal(wide, {.max_arrays = 1}).find("too many columns"), std::string::npos);
}

}  // namespace
}  // namespace steep
