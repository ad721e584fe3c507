// Parquet files, read by a module that the program loads when it meets the first one.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "steep/limits.h"
#include "steep/tensor.h"
#include "tables/module.h"

namespace steep {

struct ParquetColumn {
  std::string name;
  Tensor values;      ///< [rows], or of lists [rows, width]; empty: was not to be read
  bool list = false;  ///< lists of one length
};

struct ParquetTable {
  std::vector<ParquetColumn> columns{};  ///< in the order of the file
  /// The types of columns that are not read, by name: texts, times, decimals, categories.
  std::map<std::string, std::string> others{};
};

/// Reads numbers, bools and lists of them, one group of rows after the other. `wanted`: the columns
/// to read; the file may lack some, and pages of its other columns are not read. Null: all. Throws
/// DataError that names the file: without the module, with what to do; a file that is damaged, has
/// no rows or no column that is read, or a name twice; in a column that is read a null, or a list
/// of another length, with its row (counted from 1) and column; a limit that is exceeded. Throws
/// IoError.
ParquetTable read_parquet(const std::string& path, const Limits& limits = {},
                          const std::set<std::string>* wanted = nullptr);

/// The same with a table of another module. For tests.
ParquetTable read_table(TableModule& table, const std::string& path, const Limits& limits,
                        const std::set<std::string>* wanted = nullptr);

/// Decides by the extension: .parquet or .pq.
bool is_parquet(const std::string& path);

}  // namespace steep
