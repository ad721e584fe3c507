// NumPy's .npz: a zip archive (APPNOTE.TXT 6.3, with zip64) of .npy members (NEP 1, format 1.0
// to 3.0).
#pragma once

#include <map>
#include <string>

#include "data/files.h"
#include "steep/data.h"

namespace steep {

/// Reads every array of the archive; the key is the name without ".npy". Members may be stored or
/// deflated, arrays in C or Fortran order and of either byte order; results are row-major. Pickled
/// objects and structured, string and complex dtypes are refused. Sizes are checked against the
/// archive before memory is allocated, CRC-32 after reading. Throws DataError that names file,
/// array and reason; IoError.
std::map<std::string, Tensor> read_npz(const ByteSource& source, const Limits& limits = {});

/// Reads the array of an .npy file, by the same rules; `name` is for messages. Throws DataError,
/// also if the limit of bytes is exceeded; IoError.
Tensor read_npy(const ByteSource& source, const std::string& name, const Limits& limits = {});

/// Like these two functions, but arrays that need no conversion are mapped, not read: see
/// map_arrays().
std::map<std::string, Tensor> map_npz(const FileSource& source, const Limits& limits = {});
Tensor map_npy(const FileSource& source, const std::string& name, const Limits& limits = {});

/// Writes members of format 1.0, stored (not deflated) and dated 1980-01-01, so that equal arrays
/// give equal files. Throws DataError for bfloat16, which NumPy does not have, and for arrays
/// beyond zip's 4 GiB.
void write_npz(FileWriter& file, const std::map<std::string, Tensor>& arrays);

}  // namespace steep
