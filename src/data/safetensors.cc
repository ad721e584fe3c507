#include "data/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>
#include <utility>

#include "runtime/budget.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kMaxRank = 64;
constexpr std::string_view kMetadata = "__metadata__";

constexpr std::array<std::pair<DType, std::string_view>, 13> kDTypes{{{DType::f64, "F64"},
                                                                      {DType::f32, "F32"},
                                                                      {DType::f16, "F16"},
                                                                      {DType::bf16, "BF16"},
                                                                      {DType::i64, "I64"},
                                                                      {DType::i32, "I32"},
                                                                      {DType::i16, "I16"},
                                                                      {DType::i8, "I8"},
                                                                      {DType::u64, "U64"},
                                                                      {DType::u32, "U32"},
                                                                      {DType::u16, "U16"},
                                                                      {DType::u8, "U8"},
                                                                      {DType::boolean, "BOOL"}}};

DType dtype_from(std::string_view text) {
  for (const auto& [dtype, name] : kDTypes) {
    if (name == text) return dtype;
  }
  return DType::undefined;
}

std::string_view text_of(DType dtype) {
  for (const auto& [type, name] : kDTypes) {
    if (type == dtype) return name;
  }
  throw DataError(
      ErrorParts{.what = fmt::format("Safetensors files of Steep have no {}.", name_of(dtype)),
                 .expected = fmt::format("{}", fmt::join(kDTypes | std::views::values, ", ")),
                 .remedy = "Convert the array, or write its bytes as uint8."});
}

[[noreturn]] void refuse(const std::string& file, const std::string& why,
                         const std::string& tensor = "") {
  throw DataError(
      ErrorParts{.what = fmt::format("{} is not a valid safetensors file: {}.", file, why),
                 .node = tensor,
                 .remedy = "The file is damaged or of another kind: write it again."});
}

void require_within(const Limits& limits, uint64_t bytes, const std::string& file) {
  if (bytes <= limits.max_bytes) return;
  throw DataError(
      ErrorParts{.what = file + " is larger than the limit of this process.",
                 .expected = fmt::format("at most {} of tensors", bytes_text(limits.max_bytes)),
                 .received = bytes_text(bytes),
                 .remedy = "If this size is intended, raise Limits::max_bytes (max_bytes= in "
                           "Python, --max-bytes, STEEP_MAX_BYTES)."});
}

/// Reads the header event by event, so that hostile nesting or length ends parsing before it fills
/// memory. If a method returns false, parsing ends; `why` then has the reason.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(size_t max_entries) : max_entries_(max_entries) {}

  SafetensorsHeader header;
  std::string why;
  std::string tensor() const { return entry_.name; }

  bool null() override { return bad("null"); }
  bool boolean(bool) override { return bad("a boolean"); }
  bool number_integer(number_integer_t) override { return bad("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return bad("a fraction"); }
  bool binary(binary_t&) override { return bad("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (entry_.dims.size() == kMaxRank) return fail("a shape has more than 64 extents");
      if (value > static_cast<number_unsigned_t>(INT64_MAX))
        return fail("an extent exceeds 2^63-1");
      entry_.dims.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::offsets) {
      if (offset_count_ == 2) return fail("data_offsets has more than two numbers");
      offsets_[offset_count_++] = value;
      return true;
    }
    return bad("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      header.metadata[key_] = value;
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return bad("a string");
    entry_.dtype = dtype_from(value);
    if (entry_.dtype == DType::undefined) return fail("dtype '" + value + "' is unknown");
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::start) {
      place_ = Place::file;
    } else if (place_ == Place::file) {
      place_ = key_ == kMetadata ? Place::metadata : Place::tensor;
    } else {
      return bad("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    key_ = name;
    if (place_ == Place::file) {
      if (!names_.insert(name).second) return fail("the name '" + name + "' appears twice");
      if (names_.size() > max_entries_) return fail("there are too many tensors");
      entry_ = {};
      entry_.name = name;
      fields_.clear();
      offset_count_ = 0;
    } else if (place_ == Place::tensor) {
      if (name != "dtype" && name != "shape" && name != "data_offsets") {
        return fail("the field '" + name + "' is unknown");
      }
      if (!fields_.insert(name).second) return fail("the field '" + name + "' appears twice");
    } else if (header.metadata.contains(name)) {
      return fail("the metadata key '" + name + "' appears twice");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      if (fields_.size() != 3) return fail("dtype, shape or data_offsets is missing");
      if (offset_count_ != 2) return fail("data_offsets needs two numbers");
      if (offsets_[1] < offsets_[0]) return fail("data_offsets run backwards");
      entry_.offset = offsets_[0];
      entry_.bytes = offsets_[1] - offsets_[0];
      header.entries.push_back(std::move(entry_));
      entry_ = {};
    }
    place_ = place_ == Place::file ? Place::end : Place::file;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") return bad("a list");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    if (why.empty()) why = fmt::format("its header is not JSON at byte {}", position);
    return false;
  }

 private:
  enum class Place { start, file, metadata, tensor, shape, offsets, end };

  bool fail(std::string reason) {
    why = std::move(reason);
    return false;
  }
  bool bad(const char* what) {
    return fail(fmt::format("{} is at a place where it is not allowed", what));
  }

  Place place_ = Place::start;
  std::string key_;
  SafetensorsEntry entry_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  uint64_t offsets_[2] = {0, 0};
  int offset_count_ = 0;
  size_t max_entries_;
};

}  // namespace

SafetensorsHeader read_safetensors_header(const ByteSource& source, const Limits& limits) {
  unsigned char prefix[8];
  source.read(0, prefix, sizeof prefix);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = (length << 8) | prefix[i];
  if (length > kMaxHeader) refuse(source.name(), "its header claims more than 100 MB");
  std::string text;
  if (length > source.size() - 8) refuse(source.name(), "its header exceeds the file");
  text.resize(static_cast<size_t>(length));
  source.read(8, text.data(), text.size());
  if (text.empty() || text.front() != '{') refuse(source.name(), "its header is not a JSON object");

  HeaderReader reader(limits.max_arrays);
  if (!Json::sax_parse(text, &reader)) refuse(source.name(), reader.why, reader.tensor());
  SafetensorsHeader header = std::move(reader.header);
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });

  const uint64_t data_bytes = source.size() - 8 - length;
  require_within(limits, data_bytes, source.name());
  uint64_t end = 0;
  for (SafetensorsEntry& entry : header.entries) {
    uint64_t bytes = size_of(entry.dtype);
    for (int64_t dim : entry.dims) {
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) {
        refuse(source.name(), "the shape's product overflows", entry.name);
      }
    }
    if (bytes != entry.bytes) {
      refuse(source.name(),
             fmt::format("shape {} of {} needs {}, data_offsets give {}", to_string(entry.dims),
                         name_of(entry.dtype), counted(bytes, "byte"), entry.bytes),
             entry.name);
    }
    if (entry.offset != end) refuse(source.name(), "tensors overlap or leave a hole", entry.name);
    end = entry.offset + entry.bytes;  // no overflow: bytes is the difference of two offsets
    if (end > data_bytes) refuse(source.name(), "a tensor exceeds the file", entry.name);
    entry.offset += 8 + length;
  }
  if (end != data_bytes)
    refuse(source.name(), "bytes that belong to no tensor follow the last one");
  return header;
}

std::map<std::string, Tensor> read_safetensors(
    const ByteSource& source, const Limits& limits,
    const std::function<bool(const std::string&)>& wants) {
  Limits of_file = limits;
  if (wants) of_file.max_bytes = SIZE_MAX;
  const SafetensorsHeader header = read_safetensors_header(source, of_file);
  uint64_t bytes = 0;
  std::map<std::string, Tensor> tensors;
  for (const SafetensorsEntry& entry : header.entries) {
    if (wants && !wants(entry.name)) {
      tensors[entry.name] = Tensor::wrap(entry.dtype, entry.dims, nullptr, nullptr);
      continue;
    }
    require_within(limits, bytes += entry.bytes, source.name());
    Tensor tensor = Tensor::empty(entry.dtype, entry.dims);
    source.read(entry.offset, tensor.data(), tensor.nbytes());
    if (entry.dtype == DType::boolean) {
      const auto* p = static_cast<const uint8_t*>(std::as_const(tensor).data());
      if (std::any_of(p, p + tensor.nbytes(), [](uint8_t b) { return b > 1; })) {
        refuse(source.name(), "a BOOL is neither 0 nor 1", entry.name);
      }
    }
    tensors.emplace(entry.name, std::move(tensor));
  }
  return tensors;
}

void write_safetensors(FileWriter& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadata)
      throw DataError("No tensor can be called '__metadata__' in safetensors.");
    const uint64_t end = offset + tensor.nbytes();
    header[name] = {{"dtype", text_of(tensor.dtype())},
                    {"shape", tensor.dims()},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  // Names come from models and need not be UTF-8, but JSON must be.
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    throw DataError(ErrorParts{.what = "A tensor's name is not valid UTF-8.",
                               .remedy = "Rename the initializer in the model."});
  }
  text.append((64 - (8 + text.size()) % 64) % 64, ' ');
  char prefix[8];
  for (int i = 0; i < 8; ++i) prefix[i] = static_cast<char>(text.size() >> (8 * i));
  file.write(prefix, sizeof prefix);
  file.write(text);
  for (const auto& [name, tensor] : tensors) file.write(tensor.data(), tensor.nbytes());
}

}  // namespace steep
