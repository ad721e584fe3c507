// NumPy's .npz: a zip archive (APPNOTE.TXT 6.3, with zip64) of .npy members (NEP 1, format 1.0
// to 3.0).
#pragma once

#include <map>
#include <string>

#include "data/files.h"
#include "steep/data.h"

namespace steep {

/// Every array of the archive, by name without ".npy". Members may be stored or deflated, arrays in
/// C or Fortran order and of either byte order; results are row-major. Pickled objects, structured,
/// string and complex dtypes are refused. Sizes are checked against the archive before memory is
/// taken, CRC-32 after reading. Throws DataError naming file, array and reason; IoError.
std::map<std::string, Tensor> read_npz(const ByteSource& source, const Limits& limits = {});

/// The one array of an .npy file, as those of an archive are read; `name` is for messages. Throws
/// DataError, also past the limit of bytes; IoError.
Tensor read_npy(const ByteSource& source, const std::string& name, const Limits& limits = {});

/// The same two without reading what can be used as it stands in the file: map_arrays().
std::map<std::string, Tensor> map_npz(const FileSource& source, const Limits& limits = {});
Tensor map_npy(const FileSource& source, const std::string& name, const Limits& limits = {});

/// Stored (not deflated) members of format 1.0, dated 1980-01-01 so that equal arrays make equal
/// files. Throws DataError for bfloat16, which NumPy lacks, and for arrays past zip's 4 GiB.
void write_npz(FileWriter& file, const std::map<std::string, Tensor>& arrays);

}  // namespace steep
