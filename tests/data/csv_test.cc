// Tables as text: values, types, and errors with row and column.
#include "data/csv.h"

#include <gtest/gtest.h>

#include "steep/error.h"

namespace steep {
namespace {

/// Throws the error of the first column that is refused, unless it is the first without a name.
std::vector<CsvColumn> read(const std::string& text, const Limits& limits = {}) {
  std::vector<CsvColumn> columns =
      read_csv(MemorySource(std::as_bytes(std::span(text)), "t.csv"), limits);
  for (const CsvColumn& column : columns) {
    if (column.refused && !column.name.empty()) throw DataError(*column.refused);
  }
  return columns;
}

constexpr std::string_view kQuoted =
    "\"a,\"\"1\"\"\",\"two\nlines\",text,d\n"
    "0,1,\"said \"\"no, \"\"\",3\r\n"
    "10,11,\"one\r\ntwo\n\"\"\n\" ,\"13\"\n"
    "\"20\",21,\"\",23";

TEST(Csv, ColumnsHaveTheTypeOfTheirCells) {
  const auto columns = read("\xef\xbb\xbf\"a b\", c ,d\r\n1,2,-3\r\n\"4\" , 5.5,6\r\n\r\n");
  ASSERT_EQ(columns.size(), 3U);
  EXPECT_EQ(columns[0].name, "a b");
  EXPECT_EQ(columns[1].name, "c");
  ASSERT_EQ(columns[0].values.dtype(), DType::i64);
  ASSERT_EQ(columns[1].values.dtype(), DType::f64);
  EXPECT_EQ(columns[0].values.data<int64_t>()[1], 4);
  EXPECT_EQ(columns[1].values.data<double>()[0], 2);
  EXPECT_EQ(columns[1].values.data<double>()[1], 5.5);
  EXPECT_EQ(columns[2].values.data<int64_t>()[0], -3);
}

TEST(Csv, QuotedCellsHaveCommasQuotesAndLines) {
  const auto columns = read_csv(MemorySource(std::as_bytes(std::span(kQuoted)), "t.csv"));
  ASSERT_EQ(columns.size(), 4U);
  EXPECT_EQ(columns[0].name, "a,\"1\"");
  EXPECT_EQ(columns[1].name, "two\nlines");
  EXPECT_TRUE(columns[2].refused);
  for (const size_t i : {0U, 1U, 3U}) {
    ASSERT_EQ(columns[i].values.size(), 3) << i;
    for (int64_t row = 0; row < 3; ++row)
      EXPECT_EQ(columns[i].values.data<int64_t>()[row], row * 10 + static_cast<int64_t>(i));
  }
}

TEST(Csv, NumbersMayHaveAPlus) {
  const auto columns = read("a,b\n+1,+2.5\n-3,+.5e+1\n");
  EXPECT_EQ(columns[0].values.data<int64_t>()[0], 1);
  EXPECT_EQ(columns[1].values.data<double>()[0], 2.5);
  EXPECT_EQ(columns[1].values.data<double>()[1], 5);
}

TEST(Csv, SkipsEmptyLinesOfSeveralColumns) {
  const auto columns = read("a,b\n1,2\n\n \r\n3,4\n\n");
  ASSERT_EQ(columns[1].values.size(), 2);
  EXPECT_EQ(columns[1].values.data<int64_t>()[1], 4);
}

TEST(Csv, TrueAndFalseAreNumbers) {
  const auto columns = read("a,b\ntrue,1\nFalse,2\nTRUE,3\n");
  ASSERT_EQ(columns[0].values.dtype(), DType::i64);
  EXPECT_EQ(columns[0].values.data<int64_t>()[0], 1);
  EXPECT_EQ(columns[0].values.data<int64_t>()[1], 0);
  EXPECT_EQ(columns[0].values.data<int64_t>()[2], 1);
}

TEST(Csv, ReadsOtherColumnsThanThoseOfTexts) {
  const std::string text = ",a,day,0,1\n0,1,2020-01-01,7,8\n1,2,,7,8\n";
  const auto columns = read_csv(MemorySource(std::as_bytes(std::span(text)), "t.csv"));
  ASSERT_EQ(columns.size(), 5U);
  EXPECT_TRUE(columns[0].refused);
  EXPECT_EQ(columns[1].values.data<int64_t>()[1], 2);
  ASSERT_TRUE(columns[2].refused);
  EXPECT_NE(columns[2].refused->what.find("row 2, column 'day'"), std::string::npos);
  EXPECT_EQ(columns[4].values.data<int64_t>()[1], 8);
}

TEST(Csv, RefusesWhatIsNoTableOfNumbers) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no rows"},
      {"a,b\n", "no rows"},
      {"a,b", "no rows"},
      {"a\n1\n\n2\n", "empty cell in row 3, column 'a'"},
      {"a,b\n1,x\n", "no number in row 2, column 'b'"},
      {"a,b\n1,+-2\n", "no number in row 2, column 'b'"},
      {"a,b\n1,+\n", "no number in row 2, column 'b'"},
      {"\xff\xfe"
       "a,b\n",
       "is written in UTF-16"},
      {"a,b\n1,0x2\n", "no number in row 2, column 'b'"},
      {"a,b\n1\n", "too few cells in row 2"},
      {"a,b\n1,2,3\n", "too many cells in row 2"},
      {"a,a\n1,2\n", "a name twice in row 1, column 2"},
      {"a,\n1,2\n", "no name in row 1, column 2"},
      {"\n1\n", "no name in row 1, column 1"},
      {"1.5,2,3\n4,5,6\n", "a number for a name in row 1, column 1"},
      {"1,1\n2,3\n", "a number for a name in row 1, column 1"},
      {"0,1\n2,3\n", "a number for a name in row 1, column 1"},
      {"a,5.1\nb,2\n", "a number for a name in row 1, column 2"},
      {"0,2,y\n1,2,3\n", "a number for a name in row 1, column 2"},
      {"nan,y\n1,2\n", "a number for a name in row 1, column 1"},
      {"1e999,y\n1,2\n", "a number for a name in row 1, column 1"},
      {"a\tb\n1\t2\n", "separated by tabs"},
      {"a;b\n1;2\n", "separated by semicolons"},
      {"a,b\ntrue,1\n1,1\n", "no number in row 3, column 'a'"},
      {"a,b\n1,1\ntrue,1\n", "no number in row 3, column 'a'"},
      {"a,b\r1,2\r3,4", "ends its rows with carriage returns alone"},
      {"a,b\n1,\"2\n", "quote in row 2 that does not end"},
      {"a,b\n1,\"2\"\"\n3,4\n", "quote in row 2 that does not end"},
      {"a,b\n1,\"2\n3,4\n\"5,6\"\n", "text behind a quote in row 2"},
      {"a,b\n\"1\"x,2\n", "text behind a quote in row 2"}};
  for (const auto& [text, said] : cases) {
    try {
      read(text);
      ADD_FAILURE() << text;
    } catch (const DataError& error) {
      EXPECT_NE(error.parts().what.find(said), std::string::npos) << error.what();
      EXPECT_NE(error.parts().what.find("t.csv"), std::string::npos) << error.what();
    }
  }
}

TEST(Csv, KeepsToLimits) {
  EXPECT_THROW(read("a,b,c\n1,2,3\n", {.max_arrays = 2}), DataError);
  EXPECT_THROW(read("a\n1\n2\n3\n4\n5\n", {.max_bytes = 32}), DataError);
  EXPECT_THROW(read("a\n1\n", {.max_bytes = 3}), DataError);
}

}  // namespace
}  // namespace steep
