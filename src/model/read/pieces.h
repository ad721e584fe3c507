// A serialised message as a list of pieces that refer to existing memory. Copies of models are made
// of pieces.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "model/read/wire.h"

namespace steep {

/// Bytes in memory, or the number of a tensor whose data is stored elsewhere.
struct Piece {
  std::span<const std::byte> bytes{};
  size_t size = 0;
  int64_t tensor = -1;
};

/// Borrows the bytes of its pieces.
struct Pieces {
  std::vector<Piece> list;
  size_t size = 0;

  void add(std::span<const std::byte> bytes) {
    size += bytes.size();
    if (!list.empty() && list.back().tensor < 0 &&
        list.back().bytes.data() + list.back().size == bytes.data()) {  // merges adjacent bytes
      list.back() = {{list.back().bytes.data(), list.back().size + bytes.size()},
                     list.back().size + bytes.size()};
      return;
    }
    list.push_back({bytes, bytes.size()});
  }
  void add_tensor(int64_t number, size_t bytes) {
    size += bytes;
    list.push_back({{}, bytes, number});
  }
  void add(const Pieces& other) {
    size += other.size;
    list.insert(list.end(), other.list.begin(), other.list.end());
  }
};

/// Strings with stable addresses, for pieces that refer to them.
class PieceText {
 public:
  std::span<const std::byte> keep(std::string text) {
    texts_.push_back(std::move(text));
    return std::as_bytes(std::span(texts_.back()));
  }
  std::span<const std::byte> header(uint32_t number, size_t length) {
    std::string text;
    append_bytes_header(text, number, length);
    return keep(std::move(text));
  }

 private:
  std::deque<std::string> texts_;
};

}  // namespace steep
