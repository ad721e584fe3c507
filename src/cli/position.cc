#include "cli/position.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "data/convert.h"
#include "runtime/crc32c.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

using Json = nlohmann::json;

/// Without the checksums of rows.
Json to_json(const ResumeSettings& s) {
  return {{"rows", s.rows},       {"batch", s.batch},         {"seed", s.seed},
          {"shuffle", s.shuffle}, {"drop_last", s.drop_last}, {"accumulate", s.accumulate}};
}

/// Reads one JSON object from a checkpoint. The bytes are not trusted.
class Reader {
 public:
  Reader(const Json& json, std::string folder) : json_(json), folder_(std::move(folder)) {}

  bool has(const char* key) const { return json_.contains(key); }
  int64_t count(const char* key, int64_t most) const {
    const auto value = get<uint64_t>(key, "a whole number", &Json::is_number_unsigned);
    if (value > static_cast<uint64_t>(most)) refuse(key, fmt::format("at most {}", most));
    return static_cast<int64_t>(value);
  }
  template <typename T>
  T get(const char* key, const char* expected, bool (Json::*is)() const noexcept) const {
    const auto found = json_.find(key);
    if (found == json_.end() || !((*found).*is)()) refuse(key, expected);
    return found->template get<T>();
  }
  std::vector<uint32_t> numbers(const char* key) const {
    const Json& list = json_.at(key);
    const auto is_sum = [](const Json& x) { return x.is_number_unsigned() && x <= UINT32_MAX; };
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_sum))
      refuse(key, "a list of whole numbers");
    return list.get<std::vector<uint32_t>>();
  }
  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    const auto found = json_.find(key);
    throw CheckpointError(ErrorParts{.what = fmt::format("'{}' of the run is damaged.", key),
                                     .node = folder_,
                                     .expected = expected,
                                     .received = found == json_.end() ? "nothing"
                                                 : found->is_number_integer()
                                                     ? found->dump()
                                                     : std::string(found->type_name()),
                                     .remedy = "Resume from another checkpoint, or train anew."});
  }

 private:
  const Json& json_;
  std::string folder_;
};

constexpr int64_t kAny = INT64_MAX;

/// `now`: the settings of this run, for what older checkpoints do not have.
ResumeSettings setting_from(const Reader& reader, const ResumeSettings& now) {
  return {.rows = reader.count("rows", kAny),
          .batch = reader.count("batch", kAny),
          .seed = reader.get<uint64_t>("seed", "a whole number", &Json::is_number_unsigned),
          .shuffle = reader.get<bool>("shuffle", "true or false", &Json::is_boolean),
          .drop_last = reader.get<bool>("drop_last", "true or false", &Json::is_boolean),
          .accumulate = reader.has("accumulate") ? reader.count("accumulate", kMost) : 1,
          .data = reader.has("data") ? reader.numbers("data") : now.data};
}

/// The number of rows that both have.
size_t common_rows(const ResumeSettings& a, const ResumeSettings& b) {
  size_t same = 0;
  for (size_t i = 0; i < std::min(a.data.size(), b.data.size()); ++i)
    same += a.data[i] == b.data[i] ? 1 : 0;
  return same;
}

}  // namespace

std::vector<uint32_t> checksums_of_rows(const Feed& feed, std::span<const TensorInfo> inputs) {
  constexpr int64_t kMostRows = 64;
  FeedBatches rows(feed, {.batch_size = 1, .shuffle = false});
  const int64_t last = rows.count() - 1, count = std::min(rows.count(), kMostRows);
  std::vector<uint32_t> sums(static_cast<size_t>(count), 0);
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<Tensor> row = rows.get(0, count == 1 ? 0 : last * i / (count - 1));
    uint32_t& sum = sums[static_cast<size_t>(i)];
    for (size_t k = 0; k < row.size(); ++k) {
      const Tensor x = convert(row[k], inputs[k].dtype, feed.names[k]);
      sum = crc32c(sum, x.data(), x.nbytes());
    }
  }
  return sums;
}

std::string to_text(const ResumeSettings& setting, const Position& position) {
  Json settings = to_json(setting);
  settings["data"] = setting.data;
  Json run{{"setting", std::move(settings)},
           {"epoch", position.epoch},
           {"next_batch", position.batch},
           {"loss_sum", position.loss_sum},
           {"loss_rows", position.loss_rows}};
  if (position.best) run["best"] = {{"loss", *position.best}, {"epoch", position.best_epoch}};
  return Json{{"run", std::move(run)}}.dump();
}

Position position_from(const std::string& user, const std::string& folder,
                       const ResumeSettings& setting, int64_t batches, std::string* warning) {
  const Json json = Json::parse(user, nullptr, false);
  const auto run = json.is_object() ? json.find("run") : json.end();
  if (run == json.end() || !run->is_object() || !run->contains("setting")) {
    throw CheckpointError(ErrorParts{.what = folder + " was not written by `steep train`.",
                                     .remedy = "Resume from a checkpoint of `steep train`."});
  }
  const Reader reader(*run, folder);
  if (!(*run)["setting"].is_object()) reader.refuse("setting", "an object");
  const ResumeSettings earlier = setting_from(Reader((*run)["setting"], folder), setting);
  constexpr auto kRemedy = "Give the same files in the same order, --batch and --seed.";
  if (to_json(earlier) != to_json(setting)) {
    throw CheckpointError(ErrorParts{.what = "The run that is resumed had other data or batches.",
                                     .node = folder,
                                     .expected = to_json(earlier).dump(),
                                     .received = to_json(setting).dump(),
                                     .remedy = kRemedy});
  }
  const size_t compared = earlier.data.size(), others = compared - common_rows(earlier, setting);
  const std::string text = fmt::format("{} of {} rows that were compared", others, compared);
  if (2 * others > compared) {
    throw CheckpointError(ErrorParts{.what = "The run that is resumed had other rows of data.",
                                     .node = folder,
                                     .expected = "the same rows in the same places, but for a few",
                                     .received = text + " are others",
                                     .remedy = kRemedy});
  }
  if (others > 0) *warning = text + " are others than in the run that is resumed";
  Position position{.epoch = reader.count("epoch", kMost),
                    .batch = reader.count("next_batch", batches),
                    .loss_sum = reader.get<double>("loss_sum", "a number", &Json::is_number),
                    .loss_rows = reader.count("loss_rows", kAny)};
  if (!std::isfinite(position.loss_sum)) reader.refuse("loss_sum", "a finite number");
  if (!reader.has("best")) return position;
  if (!(*run)["best"].is_object()) reader.refuse("best", "an object");
  const Reader best((*run)["best"], folder);
  position.best = best.get<double>("loss", "a number", &Json::is_number);
  position.best_epoch = best.count("epoch", kMost);
  return position;
}

}  // namespace steep::cli
