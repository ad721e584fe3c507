// Commands in messages, for users to paste.
#pragma once

#include <string>
#include <string_view>

namespace steep {

/// A word as a POSIX shell reads it: in quotes if it has characters that the shell would interpret.
inline std::string shell_word(std::string_view word) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("%+,-./:=@_").find(c) != std::string_view::npos;
  };
  std::string quoted = "'";
  bool all_plain = !word.empty();
  for (const char c : word) {
    all_plain = all_plain && plain(c);
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return all_plain ? std::string(word) : quoted + "'";
}

}  // namespace steep
