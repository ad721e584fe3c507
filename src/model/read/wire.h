// Reads protobuf's wire format field by field without allocating. The prescan uses it before
// protobuf's parser allocates, and with_weights() uses it to copy.
// (protobuf.dev/programming-guides/encoding.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace steep {

enum class WireType : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

struct WireField {
  uint32_t number = 0;
  WireType type = WireType::varint;
  uint64_t value = 0;                    ///< of a varint
  std::span<const std::byte> payload{};  ///< of length-delimited fields: the bytes after the length
  std::span<const std::byte> whole{};    ///< the field with its tag, for copying
};

/// Walks the fields of one message. Borrows the bytes.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> message) : rest_(message), size_(message.size()) {}

  /// Returns false at the end. Throws ModelError when the bytes are no message, or end within a
  /// field.
  bool next(WireField& field);

 private:
  uint64_t varint();

  std::span<const std::byte> rest_;
  size_t size_;
};

void append_varint(std::string& out, uint64_t value);
/// Appends tag and length of a field; its payload of `length` bytes follows.
void append_bytes_header(std::string& out, uint32_t number, size_t length);

}  // namespace steep
