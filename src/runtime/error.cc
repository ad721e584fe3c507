#include "steep/error.h"

#include "runtime/utf8.h"

namespace steep {
namespace {

std::string render(const ErrorParts& p) {
  std::string text = p.what;
  auto part = [&text](const char* label, const std::string& value) {
    if (!value.empty()) text += std::string("\n  ") + label + value;
  };
  part(p.op.empty() ? "name:     " : "node:     ", p.node);
  part("op:       ", p.op);
  part("expected: ", p.expected);
  part("received: ", p.received);
  part("remedy:   ", p.remedy);
  return text;
}

/// Makes messages valid UTF-8, because they may quote any bytes of a file.
ErrorParts readable(ErrorParts p) {
  for (std::string* part : {&p.what, &p.node, &p.op, &p.expected, &p.received, &p.remedy})
    *part = as_utf8(std::move(*part));
  return p;
}

}  // namespace

Error::Error(ErrorParts parts)
    : std::runtime_error(as_utf8(render(parts))), parts_(readable(std::move(parts))) {}

}  // namespace steep
