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
  Tensor values;  ///< [rows]: int64 if every cell is a whole number without point or exponent, else
                  ///< float64
};

/// Returns columns in the order of the file. Rows end in LF or CRLF; names and numbers may be in
/// double quotes and surrounded by spaces. Throws DataError that names file, row and column: an
/// empty cell or one that is not a number, a row with more or fewer cells than there are names, a
/// duplicate or empty name, no rows, a limit that is exceeded. Throws IoError.
std::vector<CsvColumn> read_csv(const ByteSource& source, const Limits& limits = {});

/// Decides by the extension, because the content of a text file does not identify it.
bool is_csv(const std::string& path);

}  // namespace steep
