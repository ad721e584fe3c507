// Tables of numbers as text: comma-separated values (RFC 4180) with a first row of names.
#pragma once

#include <string>
#include <vector>

#include "data/files.h"
#include "steep/limits.h"
#include "steep/tensor.h"

namespace steep {

struct CsvColumn {
  std::string name;
  Tensor values;  ///< [rows]: int64 where every cell is a whole number without point or exponent,
                  ///< else float64
};

/// In the order of the file. Rows end in LF or CRLF, names and numbers may be in double quotes, and
/// have spaces around. Throws DataError naming file, row and column: a cell that is empty or no
/// number, a row with more or fewer cells than names, a name twice or empty, no row; and past a
/// limit. Throws IoError.
std::vector<CsvColumn> read_csv(const ByteSource& source, const Limits& limits = {});

/// By its name's ending: the content of a text file tells nothing.
bool is_csv(const std::string& path);

}  // namespace steep
