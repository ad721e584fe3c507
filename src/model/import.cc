#include "model/import.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

#include "model/check.h"
#include "model/lower.h"
#include "model/quote.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Whatever ONNX's library or the allocator throws becomes one of ours.
template <typename F>
auto with_our_errors(const F& f) {
  try {
    return f();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw OutOfMemoryError({.what = "There is not enough memory to import the model."});
  } catch (const std::exception& e) {
    throw ModelError({.what = "ONNX's library refuses the model.",
                      .received = quote(e.what()),
                      .remedy = "Export the model again; onnx.checker.check_model may say more."});
  }
}

/// Reads a whole regular file. The size is checked before memory is taken.
std::string read_file(const std::filesystem::path& path, size_t max_bytes) {
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
  const auto size = static_cast<size_t>(info.st_size);
  if (size > max_bytes) {
    throw ModelError(
        {.what = "The model file is too large.",
         .node = quote(path.string()),
         .expected = fmt::format("at most {} bytes", max_bytes),
         .received = fmt::format("{} bytes", size),
         .remedy = "If the model is meant to be so large, raise ImportLimits::max_bytes."});
  }
  std::string bytes(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t n = read(fd, bytes.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno();
    if (n == 0) fail("the file shrank while it was read");
    done += static_cast<size_t>(n);
  }
  return bytes;
}

ImportedModel lower(const CheckedModel& checked, const ImportLimits& limits) {
  ImportedModel model;
  model.opset = default_opset(checked.proto.opset_import());
  model.producer = quote(checked.proto.producer_name());
  model.graph.node_limit = limits.max_nodes;
  Lowering(checked, model.graph, limits).run();
  for (const auto& tensor : checked.proto.graph().initializer()) {
    model.initializers.push_back(tensor.name());
  }
  model.graph.prune();
  return model;
}

}  // namespace

ImportedModel import_model(std::span<const std::byte> bytes, const ImportLimits& limits,
                           const std::filesystem::path& folder,
                           const std::map<std::string, Tensor>& given) {
  return with_our_errors([&] { return lower(read_model(bytes, limits, folder, given), limits); });
}

ImportedModel import_model(const std::filesystem::path& path, const ImportLimits& limits) {
  return with_our_errors([&] {
    std::filesystem::path folder = path.parent_path();
    if (folder.empty()) folder = ".";
    CheckedModel checked = [&] {
      const std::string bytes = read_file(path, limits.max_bytes);  // gone before lowering starts
      return read_model(std::as_bytes(std::span(bytes)), limits, folder);
    }();
    return lower(checked, limits);
  });
}

}  // namespace steep
