#include "steep/error.h"

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

}  // namespace

Error::Error(ErrorParts parts) : std::runtime_error(render(parts)), parts_(std::move(parts)) {}

}  // namespace steep
