#include "model/read/model_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>
#include <new>
#include <system_error>

#include "model/read/prescan.h"
#include "model/read/protobuf.h"
#include "model/read/quote.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {

// Checks the size before it allocates.
std::string read_file(const std::filesystem::path& path, size_t max_bytes, FileMark* mark) {
  auto fail = [&](const std::string& why) {
    throw IoError({.what = "The model cannot be read: " + why + ".",
                   .node = quote(path.string()),
                   .remedy = "Check the path."});
  };
  auto fail_errno = [&] { fail(std::generic_category().message(errno)); };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) fail_errno();
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } const closer{fd};
  struct stat info {};
  if (fstat(fd, &info) != 0) fail_errno();
  if (!S_ISREG(info.st_mode)) fail("it is not a regular file");
  if (mark != nullptr) *mark = mark_of(info);
  const auto size = static_cast<size_t>(info.st_size);
  if (size > max_bytes) {
    throw ModelError({.what = "The model file is too large.",
                      .node = quote(path.string()),
                      .expected = fmt::format("at most {} bytes", max_bytes),
                      .received = counted(size, "byte"),
                      .remedy = "If this size is intended, raise Limits::max_bytes "
                                "(max_bytes= in Python, --max-bytes)."});
  }
  std::string bytes(size, '\0');
  for (size_t offset = 0; offset < size;) {
    const ssize_t n = read(fd, bytes.data() + offset, std::min(size - offset, size_t{64} << 20));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno();
    if (n == 0) fail("the file shrank while it was read");
    offset += static_cast<size_t>(n);
    poll();
  }
  return bytes;
}

onnx::ModelProto parse_model(std::span<const std::byte> bytes, const Limits& limits) {
  require_own_protobuf();
  scan_model(bytes, limits);
  if (bytes.size() > static_cast<size_t>(INT_MAX)) {
    throw ModelError({.what = "The model file is larger than protobuf can read.",
                      .expected = fmt::format("at most {} bytes", INT_MAX),
                      .received = counted(bytes.size(), "byte"),
                      .remedy = "Save the model with external data."});
  }
  auto model = std::make_unique<onnx::ModelProto>();
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                                            static_cast<int>(bytes.size()));
  // A nested graph adds three levels of messages; types and shapes add a few more.
  in.SetRecursionLimit(3 * limits.max_depth + 40);
  bool parsed = false;
  try {
    parsed = model->ParseFromCodedStream(&in) && in.ConsumedEntireMessage();
  } catch (const std::bad_alloc&) {
    // Leak the message: destroying an incomplete message crashes protobuf (ops/onnx_proto.cc).
    [[maybe_unused]] const onnx::ModelProto* leak = model.release();
    throw;
  }
  if (!parsed) {
    throw ModelError(
        {.what = "The model cannot be parsed: its bytes are damaged, or nested too deep.",
         .expected = "an ONNX model (a protobuf message)",
         .remedy = "Check that the whole file was copied, or export the model again."});
  }
  return std::move(*model);
}

onnx::ModelProto parse_known(std::string_view bytes) {
  onnx::ModelProto model;
  if (bytes.size() > static_cast<size_t>(INT_MAX) ||
      !model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw ModelError({.what = "The model cannot be parsed.",
                      .expected = "an ONNX model",
                      .remedy = "Export the model again."});
  }
  return model;
}

}  // namespace steep
