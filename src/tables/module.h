// What a module that reads tables offers. It is a shared library of its own, which the program
// loads when it meets such a file, because its libraries are large and many systems lack them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "steep/dtype.h"

namespace steep {

/// Parts of an error. The module throws nothing: types of exceptions are not shared with it.
struct TableFailure {
  std::string what{};  ///< without the file; empty: no failure
  std::string expected{};
  std::string received{};
  std::string remedy{};
};

struct TableColumn {
  std::string name{};
  DType dtype = DType::undefined;  ///< undefined: a type that is not read
  std::string type{};              ///< as the file has it
  bool list = false;               ///< rows are lists of numbers
};

/// Numbers of some rows of a column.
struct TableNumbers {
  const void* data = nullptr;  ///< [rows, width] in row-major order; valid until the next read
  int64_t rows = 0;
  int64_t width = 1;  ///< of lists; -1: there are no rows
};

class TableModule {
 public:
  virtual ~TableModule() = default;
  virtual const std::vector<TableColumn>& columns() const = 0;
  virtual int64_t rows() const = 0;
  virtual int groups() const = 0;
  /// Reads one column of one group of rows.
  virtual TableFailure read(int group, int column, TableNumbers* numbers) = 0;
};

/// The module's function, of the name kOpenTable: a table in the file at `path` or, if that is
/// null, in memory, which must outlive it. Null if it fails. What is read at a time takes at most
/// `max_bytes`.
using OpenTable = TableModule* (*)(const char* path, const void* bytes, uint64_t size,
                                   uint64_t max_bytes, TableFailure* failure);
constexpr const char* kOpenTable = "steep_open_parquet";

}  // namespace steep
