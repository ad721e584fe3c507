#include "model/export/data_files.h"

#include <fmt/format.h>

#include "model/read/copier.h"
#include "model/read/model_file.h"
#include "model/read/prescan.h"
#include "runtime/disk.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;

// Field numbers of onnx.proto.
constexpr uint32_t kTensorExternalData = 13;
constexpr uint32_t kEntryKey = 1;
constexpr uint32_t kEntryValue = 2;

class Locations : public Copier {
 public:
  std::set<std::string> names;

 protected:
  std::optional<Pieces> tensor(std::span<const std::byte> message, const MessagePlace&) override {
    WireReader reader(message);
    for (WireField f; reader.next(f);) {
      if (f.number != kTensorExternalData || f.type != WireType::bytes) continue;
      std::string_view key, value;
      WireReader entry(f.payload);
      for (WireField e; entry.next(e);) {
        if (e.number == kEntryKey && e.type == WireType::bytes) key = text_of(e.payload);
        if (e.number == kEntryValue && e.type == WireType::bytes) value = text_of(e.payload);
      }
      if (key == "location") names.emplace(value);
    }
    return std::nullopt;
  }
};

std::string data_name(const fs::path& model, int i) {
  const std::string name = model.filename().string() + ".data";
  return i == 1 ? name : fmt::format("{}-{}", name, i);
}

}  // namespace

fs::path unused_data_file(const fs::path& model) {
  for (int i = 1;; ++i) {
    fs::path file = model.parent_path() / data_name(model, i);
    std::error_code error;
    if (fs::symlink_status(file, error).type() == fs::file_type::not_found) return file;
    if (error) throw_io("write", file, error.value());
  }
}

std::vector<fs::path> data_files_of(const fs::path& model) {
  std::vector<fs::path> files;
  const std::string first = data_name(model, 1);
  const fs::path folder = model.parent_path().empty() ? fs::path(".") : model.parent_path();
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(first)) continue;
    const std::string rest = name.substr(first.size());
    const bool numbered = rest.size() > 1 && rest[0] == '-' &&
                          rest.find_first_not_of("0123456789", 1) == std::string::npos;
    if ((rest.empty() || numbered) && fs::is_regular_file(it->symlink_status(error)))
      files.push_back(model.parent_path() / name);
  }
  return files;
}

std::set<std::string> locations_in(const fs::path& model) {
  std::error_code error;
  if (!fs::exists(model, error)) return {};
  try {
    // A model above 256 MiB has its data inside.
    const std::string bytes = read_file(model, size_t{256} << 20);
    const auto message = std::as_bytes(std::span(bytes));
    scan_model(message, {});
    Locations locations;
    locations.copy(Message::model, message);
    return std::move(locations.names);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace steep
