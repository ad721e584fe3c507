// The table of import handlers.
#include "model/import/handlers.h"

#include <gtest/gtest.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "contrib/contrib.h"

namespace steep {
namespace {

constexpr int kOldestOpset = 7;

std::string text_of(const HandlerRow& row) {
  return std::string(row.domain) + "." + std::string(row.op) + " " + std::to_string(row.since);
}

/// The first version of the domain for which the row is looked up.
int first_version(const HandlerRow& row) {
  return row.domain.empty() ? std::max(row.since, kOldestOpset) : row.since;
}

TEST(HandlersTest, EachRowBeginsAtAVersionOfItsOperator) {
  for (const HandlerRow& row : handler_rows()) {
    if (row.domain == kContribDomain) {
      EXPECT_NE(find_contrib(row.op), nullptr) << text_of(row);
      continue;
    }
    const onnx::OpSchema* schema =
        onnx::OpSchemaRegistry::Schema(std::string(row.op), row.since, std::string(row.domain));
    ASSERT_NE(schema, nullptr) << text_of(row);
    EXPECT_EQ(schema->since_version(), row.since) << text_of(row);
  }
}

TEST(HandlersTest, NoOperatorHasTwoRowsForOneVersion) {
  const std::span<const HandlerRow> rows = handler_rows();
  for (size_t i = 1; i < rows.size(); ++i) {
    const HandlerRow &a = rows[i - 1], &b = rows[i];
    EXPECT_LT(std::tie(a.domain, a.op, a.since), std::tie(b.domain, b.op, b.since)) << text_of(b);
    const bool same = a.domain == b.domain && a.op == b.op;
    EXPECT_FALSE(same && a.import == b.import) << text_of(b) << " says nothing new";
  }
}

TEST(HandlersTest, EachRowIsFoundFromItsVersionUntilTheNextRow) {
  const std::span<const HandlerRow> rows = handler_rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    const HandlerRow& row = rows[i];
    const bool last =
        i + 1 == rows.size() || rows[i + 1].domain != row.domain || rows[i + 1].op != row.op;
    const int end = last ? row.since + 100 : rows[i + 1].since;
    EXPECT_LT(first_version(row), end) << text_of(row) << " is of opsets that are not read";
    for (int version = first_version(row); version < end; ++version)
      EXPECT_EQ(find_handler(row.domain, row.op, version), row.import) << text_of(row);
    const bool first = i == 0 || rows[i - 1].domain != row.domain || rows[i - 1].op != row.op;
    if (first) {
      EXPECT_EQ(find_handler(row.domain, row.op, row.since - 1), import_as_is) << text_of(row);
    }
  }
}

TEST(HandlersTest, OperatorsWithoutARowAreImportedAsTheyAre) {
  EXPECT_EQ(find_handler("", "Add", 21), import_as_is);
  EXPECT_EQ(find_handler("", "", 21), import_as_is);
  EXPECT_EQ(find_handler("zzz", "If", 1), import_as_is);
  EXPECT_EQ(find_handler(kContribDomain, "If", 1), import_as_is);
}

}  // namespace
}  // namespace steep
