// Tables as text: values, types, and errors with row and column.
#include "data/csv.h"

#include <gtest/gtest.h>

#include "steep/error.h"

namespace steep {
namespace {

std::vector<CsvColumn> read(const std::string& text, const Limits& limits = {}) {
  return read_csv(MemorySource(std::as_bytes(std::span(text)), "t.csv"), limits);
}

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

TEST(Csv, RefusesWhatIsNoTableOfNumbers) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no rows"},
      {"a,b\n", "no rows"},
      {"a\n1\n\n2\n", "empty cell in row 3, column 'a'"},
      {"a,b\n1,x\n", "no number in row 2, column 'b'"},
      {"a,b\n1,+2\n", "no number in row 2, column 'b'"},
      {"a,b\n1,0x2\n", "no number in row 2, column 'b'"},
      {"a,b\n1\n", "too few cells in row 2"},
      {"a,b\n1,2,3\n", "too many cells in row 2"},
      {"a,a\n1,2\n", "a name twice in row 1, column 2"},
      {"a,\n1,2\n", "no name in row 1, column 2"},
      {"a,b\n1,\"2\n", "does not end"},
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
