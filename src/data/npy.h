// The header of NumPy's .npy format (NEP 1).
#pragma once

#include <string>
#include <string_view>

#include "steep/tensor.h"

namespace steep {

struct NpyHeader {
  DType dtype = DType::undefined;
  bool swapped = false;  ///< the byte order is not this machine's
  bool fortran_order = false;
  Dims dims{};
};

/// Parses the dictionary of a header, e.g. "{'descr': '<f4', 'fortran_order': False, 'shape': (3,
/// 4), }". Returns "" on success, else the reason why it is refused.
std::string parse_npy_header(std::string_view text, NpyHeader* header);

/// Magic, version, length and dictionary of format 1.0, padded to 64 bytes. Throws DataError for
/// bfloat16.
std::string npy_preamble(DType dtype, const Dims& dims);

/// Reverses the bytes of each element, in place.
void swap_bytes(void* data, size_t count, size_t element_size);

/// A row-major copy of a tensor whose elements are in column-major order, with the same extents.
Tensor from_fortran_order(const Tensor& tensor);

}  // namespace steep
