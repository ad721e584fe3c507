#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/json_text.h"
#include "runtime/counted.h"
#include "runtime/crc32c.h"
#include "runtime/float32.h"
#include "runtime/json_nesting.h"
#include "steep/error.h"

namespace steep {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kVersion = 1;
constexpr size_t kMaxUser = size_t{1} << 20;
constexpr size_t kMaxManifest = size_t{4} << 20;
constexpr int kMaxDepth = 64;
constexpr std::string_view kTail = ",\n  \"crc32c\": \"";  // 8 digits and kEnd follow
constexpr std::string_view kEnd = "\"\n}\n";

void check_nesting(std::string_view text, int max_depth, const std::string& name) {
  if (json_nesting(text) > max_depth)
    throw DataError(ErrorParts{.what = name + " is nested too deeply."});
}

[[noreturn]] void throw_no_json(const std::string& name) {
  throw DataError(ErrorParts{.what = name + " is not valid JSON."});
}

/// The data of the caller, in one line.
std::string user_text(const std::string& user) {
  const std::string name = "the checkpoint's user data";
  check_nesting(user, kMaxDepth, name);
  std::optional<std::string> text = compact_json(user);
  if (!text) throw_no_json(name);
  return std::move(*text);
}

/// The member `key`, if is() says that it has the right type.
template <typename T>
T get(const Json& json, const char* key, bool (Json::*is)() const noexcept) {
  const auto found = json.find(key);
  if (found == json.end() || !((*found).*is)()) {
    throw DataError(ErrorParts{.what = fmt::format("The manifest has no valid '{}'.", key)});
  }
  return found->template get<T>();
}

uint64_t get_count(const Json& json, const char* key) {
  return get<uint64_t>(json, key, &Json::is_number_unsigned);
}

std::string get_text(const Json& json, const char* key) {
  return get<std::string>(json, key, &Json::is_string);
}

uint32_t parse_crc(std::string_view text) {
  uint32_t crc = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (text.size() != 8 || error != std::errc{} || end != text.data() + text.size()) {
    throw DataError("A checksum in the manifest is damaged.");
  }
  return crc;
}

/// Empty in older checkpoints.
std::map<std::string, std::string> get_settings(const Json& json) {
  std::map<std::string, std::string> settings;
  if (!json.contains("settings")) return settings;
  const Json list = get<Json>(json, "settings", &Json::is_object);
  for (const auto& [name, text] : list.items()) {
    if (!text.is_string()) throw DataError("The manifest has no valid 'settings'.");
    settings[name] = text.get<std::string>();
  }
  return settings;
}

void check_ranges(const Checkpoint& c) {
  if (c.step < 0) throw DataError("The checkpoint's step is out of range.");
  if (!(c.lr >= 0 && fits_float32(c.lr))) throw DataError("The checkpoint's lr is out of range.");
  if (!(c.loss_scale >= 0 && fits_float32(c.loss_scale)) || c.clean_steps < 0) {
    throw DataError("The checkpoint's loss scale is out of range.");
  }
  if (c.threads < 0) throw DataError("The checkpoint's number of threads is out of range.");
}

}  // namespace

std::string write_manifest(const Checkpoint& checkpoint,
                           const std::map<std::string, FileRecord>& files) {
  if (checkpoint.user.size() > kMaxUser) {
    throw DataError(ErrorParts{.what = "The checkpoint's user data is too long.",
                               .expected = fmt::format("at most {} bytes", kMaxUser),
                               .received = counted(checkpoint.user.size(), "byte")});
  }
  check_ranges(checkpoint);
  Json json{{"format", "steep checkpoint"},
            {"version", kVersion},
            {"fingerprint", checkpoint.fingerprint},
            {"step", checkpoint.step},
            {"seed", checkpoint.seed},
            {"run_count", checkpoint.run_count},
            {"lr", checkpoint.lr},
            {"schedule", checkpoint.schedule}};
  if (checkpoint.loss_scale > 0) {
    json["loss_scale"] = checkpoint.loss_scale;
    json["clean_steps"] = checkpoint.clean_steps;
  }
  if (checkpoint.threads > 0) json["threads"] = checkpoint.threads;
  if (!checkpoint.settings.empty()) json["settings"] = checkpoint.settings;
  for (const auto& [name, file] : files) {
    json["files"][name] = {{"bytes", file.bytes}, {"crc32c", fmt::format("{:08x}", file.crc)}};
  }
  const std::string user = user_text(checkpoint.user);
  std::string text;
  try {
    text = json.dump(2);
    text.resize(text.size() - 2);  // "\n}"
    // On one line, because indentation could make it a hundred times as long.
    text += ",\n  \"user\": " + user + "\n}";
  } catch (const Json::exception&) {
    throw DataError("The checkpoint's text is not valid UTF-8.");
  }
  text = seal_manifest(std::move(text));
  if (text.size() > kMaxManifest) {
    throw DataError(ErrorParts{.what = "The checkpoint's user data is too long.",
                               .expected = fmt::format("at most {} bytes as JSON", kMaxManifest),
                               .received = counted(text.size(), "byte")});
  }
  return text;
}

std::string seal_manifest(std::string json) {
  json.resize(json.size() - 2);  // "\n}"
  const uint32_t crc = crc32c(0, json.data(), json.size());
  return fmt::format("{}{}{:08x}{}", json, kTail, crc, kEnd);
}

void read_manifest(const ByteSource& source, Checkpoint* checkpoint,
                   std::map<std::string, FileRecord>* files) {
  if (source.size() > kMaxManifest) throw DataError("The manifest is too long.");
  std::string text(static_cast<size_t>(source.size()), '\0');
  source.read(0, text.data(), text.size());
  const size_t tail = kTail.size() + 8 + kEnd.size();
  const size_t body = text.size() < tail ? 0 : text.size() - tail;
  const std::string_view end = std::string_view(text).substr(body);
  if (body == 0 || !end.starts_with(kTail) || !end.ends_with(kEnd)) {
    throw DataError("The manifest is cut off or damaged at its end.");
  }
  const uint32_t crc = crc32c(0, text.data(), body);
  if (end.substr(kTail.size(), 8) != fmt::format("{:08x}", crc)) {
    throw DataError("The manifest's checksum does not match.");
  }

  check_nesting(text, kMaxDepth + 1, "the manifest");
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) throw_no_json("the manifest");
  if (get_text(json, "format") != "steep checkpoint")
    throw DataError("It is not a Steep checkpoint.");
  if (const uint64_t version = get_count(json, "version"); version != kVersion) {
    throw DataError(ErrorParts{.what = "The checkpoint's format version is unknown.",
                               .expected = std::to_string(kVersion),
                               .received = std::to_string(version),
                               .remedy = "Load it with the version of Steep that wrote it."});
  }
  checkpoint->fingerprint = get_text(json, "fingerprint");
  const auto count = [&](const char* key) {
    const uint64_t value = get_count(json, key);
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      throw DataError(ErrorParts{.what = fmt::format("The manifest's {} is too large.", key)});
    }
    return static_cast<int64_t>(value);
  };
  checkpoint->step = count("step");
  checkpoint->seed = get_count(json, "seed");
  checkpoint->run_count = get_count(json, "run_count");
  checkpoint->lr = get<double>(json, "lr", &Json::is_number);
  checkpoint->schedule = get_text(json, "schedule");
  if (json.contains("loss_scale")) {
    checkpoint->loss_scale = get<double>(json, "loss_scale", &Json::is_number);
    checkpoint->clean_steps = count("clean_steps");
    if (!(checkpoint->loss_scale > 0))
      throw DataError("The manifest's loss scale is out of range.");
  }
  if (json.contains("threads")) {
    checkpoint->threads = static_cast<int>(std::min<int64_t>(count("threads"), INT_MAX));
  }
  checkpoint->settings = get_settings(json);
  check_ranges(*checkpoint);
  std::optional<std::string> user = compact_member(text, "user");
  if (!user) throw DataError("The manifest has no valid 'user'.");
  checkpoint->user = std::move(*user);
  const Json list = get<Json>(json, "files", &Json::is_object);
  for (const auto& [name, record] : list.items()) {
    if (!record.is_object()) throw DataError("The manifest's list of files is damaged.");
    (*files)[name] = {get_count(record, "bytes"), parse_crc(get_text(record, "crc32c"))};
  }
}

}  // namespace steep
