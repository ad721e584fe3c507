// Hashes of texts, by which models and processes are compared. Not against an attacker.
#pragma once

#include <cstdint>
#include <string_view>

namespace steep {

/// FNV-1a, to be continued with further bytes.
class Digest {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) {
      state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    }
  }
  uint64_t value() const { return state_; }
  /// 52 bits of it, which a float64 holds exactly.
  double number() const { return static_cast<double>(state_ >> 12); }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

inline double digest_of(std::string_view text) {
  Digest digest;
  digest.add(text);
  return digest.number();
}

}  // namespace steep
