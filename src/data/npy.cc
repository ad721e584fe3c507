#include "data/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "steep/error.h"

namespace steep {
namespace {

constexpr size_t kMaxRank = 64;
constexpr std::array<std::pair<DType, std::string_view>, 12> kKinds{{{DType::f16, "f2"},
                                                                     {DType::f32, "f4"},
                                                                     {DType::f64, "f8"},
                                                                     {DType::i8, "i1"},
                                                                     {DType::i16, "i2"},
                                                                     {DType::i32, "i4"},
                                                                     {DType::i64, "i8"},
                                                                     {DType::u8, "u1"},
                                                                     {DType::u16, "u2"},
                                                                     {DType::u32, "u4"},
                                                                     {DType::u64, "u8"},
                                                                     {DType::boolean, "b1"}}};

/// The subset of Python literals that numpy.save writes.
class Literal {
 public:
  explicit Literal(std::string_view text) : text_(text) {}

  bool accept(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool accept(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  bool text(std::string* out) {
    skip_space();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return false;
    const size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return false;
    *out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return true;
  }
  bool number(int64_t* out) {
    skip_space();
    const char* first = text_.data() + at_;
    const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), *out);
    if (error != std::errc{} || *out < 0) return false;
    at_ += static_cast<size_t>(end - first);
    accept('L');  // Python 2 wrote long integers with an L
    return true;
  }
  bool done() {
    skip_space();
    return at_ == text_.size();
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  std::string_view text_;
  size_t at_ = 0;
};

std::string parse_descr(const std::string& descr, NpyHeader* header) {
  if (descr.find('O') != std::string::npos) {
    return "it holds pickled Python objects, which Steep never loads; save a plain numeric array";
  }
  if (descr.size() != 3) return fmt::format("its dtype '{}' is not supported", descr);
  for (const auto& [dtype, kind] : kKinds) {
    if (kind == std::string_view(descr).substr(1)) header->dtype = dtype;
  }
  const bool known_order = descr[0] == '<' || descr[0] == '>' || descr[0] == '|' || descr[0] == '=';
  if (header->dtype == DType::undefined || !known_order) {
    return fmt::format("its dtype '{}' is not supported", descr);
  }
  const bool little = std::endian::native == std::endian::little;
  header->swapped = (descr[0] == '>' && little) || (descr[0] == '<' && !little);
  return "";
}

bool parse_shape(Literal& literal, Dims* dims) {
  if (!literal.accept('(')) return false;
  while (!literal.accept(')')) {
    int64_t dim = 0;
    if (dims->size() == kMaxRank || !literal.number(&dim)) return false;
    dims->push_back(dim);
    if (!literal.accept(',')) return literal.accept(')');
  }
  return true;
}

template <typename T>
void gather_fortran(const T* from, T* to, const Dims& dims) {
  // Walks `to` in order; `at` is the column-major index of the same element.
  const int64_t count = element_count(dims);
  if (count == 0) return;
  const size_t rank = dims.size();
  Dims stride(rank);
  std::exclusive_scan(dims.begin(), dims.end(), stride.begin(), int64_t{1}, std::multiplies<>());
  Dims index(rank, 0);
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = from[at];
    for (size_t axis = rank; axis-- > 0;) {
      at += stride[axis];
      if (++index[axis] < dims[axis]) break;
      at -= stride[axis] * dims[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace

std::string parse_npy_header(std::string_view text, NpyHeader* header) {
  Literal literal(text);
  bool have_descr = false, have_order = false, have_shape = false;
  if (!literal.accept('{')) return "its header is damaged";
  while (!literal.accept('}')) {
    std::string key, descr;
    if (!literal.text(&key) || !literal.accept(':')) return "its header is damaged";
    if (key == "descr" && !std::exchange(have_descr, true)) {
      if (literal.accept('[')) return "its dtype is structured, which is not supported";
      if (!literal.text(&descr)) return "its header is damaged";
      if (std::string why = parse_descr(descr, header); !why.empty()) return why;
    } else if (key == "fortran_order" && !std::exchange(have_order, true)) {
      header->fortran_order = literal.accept("True");
      if (!header->fortran_order && !literal.accept("False")) return "its header is damaged";
    } else if (key == "shape" && !std::exchange(have_shape, true)) {
      if (!parse_shape(literal, &header->dims)) return "its shape is damaged";
    } else {
      return "its header is damaged";
    }
    if (!literal.accept(',')) {
      if (!literal.accept('}')) return "its header is damaged";
      break;
    }
  }
  if (!literal.done() || !have_descr || !have_order || !have_shape) return "its header is damaged";
  return "";
}

std::string npy_preamble(DType dtype, const Dims& dims) {
  std::string_view kind;
  for (const auto& [type, name] : kKinds) {
    if (type == dtype) kind = name;
  }
  if (kind.empty()) {
    const bool other = dtype == DType::bf16;  // safetensors has no narrower type either
    throw DataError(ErrorParts{.what = fmt::format("NumPy has no {}.", name_of(dtype)),
                               .remedy = other
                                             ? "Write .safetensors instead."
                                             : "Convert the array, or write its bytes as uint8."});
  }
  std::string shape = fmt::format("{}", fmt::join(dims, ", "));
  if (dims.size() == 1) shape += ",";
  std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                                 size_of(dtype) == 1 ? '|' : '<', kind, shape);
  text.append(63 - (10 + text.size()) % 64, ' ');
  text += '\n';
  std::string out = "\x93NUMPY";
  out += {'\1', '\0', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return out + text;
}

void swap_bytes(void* data, size_t count, size_t element_size) {
  auto* p = static_cast<uint8_t*>(data);
  for (size_t i = 0; i < count; ++i, p += element_size) std::reverse(p, p + element_size);
}

Tensor from_fortran_order(const Tensor& tensor) {
  Tensor out = Tensor::empty(tensor.dtype(), tensor.dims());
  const auto go = [&]<typename T>(T) {
    gather_fortran(static_cast<const T*>(tensor.data()), static_cast<T*>(out.data()),
                   tensor.dims());
  };
  switch (size_of(tensor.dtype())) {
    case 1: go(uint8_t{}); break;
    case 2: go(uint16_t{}); break;
    case 4: go(uint32_t{}); break;
    default: go(uint64_t{}); break;
  }
  return out;
}

}  // namespace steep
