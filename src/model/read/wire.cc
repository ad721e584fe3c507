#include "model/read/wire.h"

#include <fmt/format.h>

#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr const char* kRemedy =
    "Check that the whole file was copied, and that it is an .onnx file.";

[[noreturn]] void fail(std::string what, size_t at) {
  throw ModelError(
      {.what = std::move(what),
       .expected = "an ONNX model (a protobuf message)",
       .received = fmt::format("bytes that cannot be decoded, at byte {} of a message", at),
       .remedy = kRemedy});
}

}  // namespace

uint64_t WireReader::varint() {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    if (rest_.empty()) fail("The model ends within a number.", size_);
    const auto b = std::to_integer<uint64_t>(rest_.front());
    rest_ = rest_.subspan(1);
    if (shift < 64) value |= (b & 0x7F) << shift;
    if (b < 0x80) return value;
  }
  fail("This is not an ONNX model.", size_ - rest_.size());
}

bool WireReader::next(WireField& field) {
  if (rest_.empty()) return false;
  const auto start = rest_;
  const uint64_t tag = varint();
  const uint64_t number = tag >> 3;
  if (number == 0 || number > (1U << 29) - 1) {
    fail("This is not an ONNX model.", size_ - start.size());
  }
  field = {.number = static_cast<uint32_t>(number), .type = static_cast<WireType>(tag & 7)};
  auto take = [&](uint64_t count) {
    if (count > rest_.size()) {
      throw ModelError(
          {.what = "The model is truncated: a part of it claims more bytes than there are.",
           .expected = counted(count, "more byte"),
           .received = fmt::format("{}", rest_.size()),
           .remedy = kRemedy});
    }
    field.payload = rest_.first(count);
    rest_ = rest_.subspan(count);
  };
  switch (field.type) {
    case WireType::varint: field.value = varint(); break;
    case WireType::fixed64: take(8); break;
    case WireType::fixed32: take(4); break;
    case WireType::bytes: take(varint()); break;
    default: fail("This is not an ONNX model.", size_ - start.size());
  }
  field.whole = start.first(start.size() - rest_.size());
  return true;
}

void append_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

void append_bytes_header(std::string& out, uint32_t number, size_t length) {
  append_varint(out, (uint64_t{number} << 3) | static_cast<uint64_t>(WireType::bytes));
  append_varint(out, length);
}

}  // namespace steep
