// Tables of numbers as text: comma-separated values (RFC 4180) with a first row of names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/files.h"
#include "steep/error.h"
#include "steep/limits.h"
#include "steep/tensor.h"

namespace steep {

struct CsvColumn {
  std::string name;  ///< "" for a first column without a name, such as the index of pandas
  Tensor values{};  ///< [rows]: int64 if every cell is a whole number without point or exponent, or
                    ///< every cell is true or false; else float64. Empty if `refused`
  /// The error for those who read this column: it has no name, or a cell is not a number.
  std::optional<ErrorParts> refused{};
};

/// Returns columns in the order of the file. Rows end in LF or CRLF; names and numbers may be in
/// double quotes and surrounded by spaces. Empty lines are skipped if there are several columns.
/// Throws DataError that names file, row and column: a first row with numbers, other than the
/// numbers of columns from 0 beside other names; a row with more or fewer cells than there are
/// names, a duplicate or empty name, no rows, a limit that is exceeded. Throws IoError.
std::vector<CsvColumn> read_csv(const ByteSource& source, const Limits& limits = {});

/// Decides by the extension, because the content of a text file does not identify it.
bool is_csv(const std::string& path);

}  // namespace steep
