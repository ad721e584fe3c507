#include "model/read/quote.h"

#include <fmt/format.h>

#include "runtime/counted.h"

namespace steep {
namespace {

constexpr size_t kLongest = 200;

}  // namespace

std::string quote(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= kLongest)
      return out + fmt::format("… ({} more)", counted(text.size(), "byte"));
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
