#include "model/quote.h"

#include <fmt/format.h>

#include <cstddef>

namespace steep {
namespace {

constexpr size_t kLongest = 200;

/// Bytes of the well-formed UTF-8 character at the front of `s`; 0 when there is none. (RFC 3629,
/// section 4.)
size_t utf8_length(std::string_view s) {
  auto byte = [&](size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0U; };
  auto tail = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned b = byte(0);
  if (s.empty()) return 0;
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF) return tail(1) ? 2 : 0;
  if (b >= 0xE0 && b <= 0xEF) {
    if (b == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
    if (b == 0xED && byte(1) > 0x9F) return 0;  // surrogate
    return tail(1) && tail(2) ? 3 : 0;
  }
  if (b >= 0xF0 && b <= 0xF4) {
    if (b == 0xF0 && byte(1) < 0x90) return 0;
    if (b == 0xF4 && byte(1) > 0x8F) return 0;
    return tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

std::string quote(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= kLongest) return out + fmt::format("… ({} bytes more)", text.size());
    const size_t n = utf8_length(text);
    const auto b = static_cast<unsigned char>(text[0]);
    if (n == 0 || b < 0x20 || b == 0x7F) {
      out += fmt::format("\\x{:02x}", b);
      text.remove_prefix(1);
    } else {
      out += text.substr(0, n);
      text.remove_prefix(n);
    }
  }
  return out;
}

}  // namespace steep
