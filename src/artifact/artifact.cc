#include "artifact/artifact.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "artifact/graph_json.h"
#include "artifact/rules.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/crc32c.h"
#include "runtime/disk.h"
#include "runtime/float32.h"
#include "runtime/json_nesting.h"
#include "steep/error.h"
#include "train/schedule.h"

namespace steep {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie");

constexpr std::array<char, 8> kMagic = {'S', 'T', 'E', 'E', 'P', 'A', 'R', 'T'};
constexpr uint32_t kVersion = 1;
constexpr size_t kAlignment = 64;
/// While JSON is parsed, it takes about twenty times its size.
constexpr uint64_t kMostHeader = uint64_t{64} << 20;
constexpr int kMostNesting = 64;

/// The first 64 bytes of the file, in the file's layout.
struct Preamble {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t header_sum = 0;
  uint64_t header_bytes = 0;
  uint64_t data_bytes = 0;
  uint32_t data_sum = 0;
  std::array<char, 24> zeros{};
  uint32_t sum = 0;  // of all bytes before it

  uint32_t own_sum() const { return crc32c(0, this, sizeof(*this) - sizeof(sum)); }
};
static_assert(sizeof(Preamble) == kAlignment);

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// --- the header ---------------------------------------------------------------------------------

constexpr std::array<const char*, 4> kRoles = {"parameter", "statistic", "moment", "count"};
constexpr std::array<const char*, 2> kPurposes = {"step", "prediction"};

template <typename Names>
size_t index_of(const Json& json, const Names& names) {
  const std::string word = text(json);
  const auto found = std::find(names.begin(), names.end(), word);
  if (found == names.end()) throw_damaged(fmt::format("'{}' is unknown", word));
  return static_cast<size_t>(found - names.begin());
}

/// The header, without the offsets of the tensors. Adds all tensors to *tensors.
Json describe(const Artifact& artifact, ArtifactTensors* tensors) {
  Json groups = Json::array(), states = Json::array(), programs = Json::array();
  for (const auto& [number, settings] : artifact.groups) {
    Json reals = Json::array();
    for (const double x : settings) reals.push_back(real_to_json(x));
    groups.push_back({number, std::move(reals)});
  }
  for (const ArtifactState& s : artifact.states)
    states.push_back(
        {s.name, kRoles.at(static_cast<size_t>(s.role)), tensors->add(s.tensor, true)});
  for (const ArtifactProgram& p : artifact.programs) {
    require_known(p.graph, p.views);
    programs.push_back({{"purpose", kPurposes.at(static_cast<size_t>(p.purpose))},
                        {"graph", graph_to_json(p.graph, &p.views, *tensors)}});
  }
  const ScheduleOptions& s = artifact.schedule;
  return {{"lr", real_to_json(artifact.lr)},
          {"schedule", {s.kind, s.warmup_steps, s.total_steps, s.min_lr_ratio}},
          {"steps", artifact.steps},
          {"seed", artifact.seed},
          {"run_count", artifact.run_count},
          {"check_finite", artifact.check_finite},
          {"groups", std::move(groups)},
          {"states", std::move(states)},
          {"programs", std::move(programs)}};
}

/// An artifact that is being written to a file.
class Written {
 public:
  explicit Written(const Artifact& artifact) {
    Json json = describe(artifact, &tensors_);
    Json places = Json::array();
    for (const Tensor& t : tensors_.tensors()) {
      places.push_back({static_cast<int32_t>(t.dtype()), t.dims(), preamble_.data_bytes});
      preamble_.data_bytes += padded(t.nbytes());
    }
    json["tensors"] = std::move(places);
    try {
      header_ = json.dump();
    } catch (const Json::exception&) {
      throw ModelError(ErrorParts{.what = "A name in the model is not valid UTF-8."});
    }
    header_.resize(padded(header_.size()), ' ');
    if (header_.size() > kMostHeader) {
      throw ModelError(ErrorParts{.what = "The graphs are too large for an artifact.",
                                  .expected = "at most " + bytes_text(kMostHeader),
                                  .received = bytes_text(header_.size()),
                                  .remedy = "Give fewer batches."});
    }
    preamble_.header_bytes = header_.size();
    preamble_.header_sum = crc32c(0, header_.data(), header_.size());
    each([&](const void* data, size_t size) {
      preamble_.data_sum = crc32c(preamble_.data_sum, data, size);
    });
    preamble_.sum = preamble_.own_sum();
  }

  template <typename Write>
  void to(Write&& write) const {
    write(&preamble_, sizeof(preamble_));
    write(header_.data(), header_.size());
    each(write);
  }

 private:
  template <typename Write>
  void each(Write&& write) const {
    constexpr std::array<char, kAlignment> kZeros{};
    for (const Tensor& t : tensors_.tensors()) {
      write(std::as_const(t).data(), t.nbytes());
      write(kZeros.data(), padded(t.nbytes()) - t.nbytes());
    }
  }

  ArtifactTensors tensors_;
  Preamble preamble_;
  std::string header_;
};

// --- reading ------------------------------------------------------------------------------------

Preamble read_preamble(const ByteSource& source) {
  Preamble p;
  if (source.size() < sizeof(p)) throw_damaged("it is cut off");
  source.read(0, &p, sizeof(p));
  if (p.magic != kMagic) {
    throw CheckpointError(ErrorParts{.what = "The file is not an artifact.",
                                     .expected = "a file that save_artifact() wrote",
                                     .remedy = "Write one with the whole library."});
  }
  if (p.version != kVersion) {
    throw CheckpointError(ErrorParts{.what = "The artifact is of another version.",
                                     .expected = std::to_string(kVersion),
                                     .received = std::to_string(p.version),
                                     .remedy = "Write it again with this version of Steep."});
  }
  if (p.sum != p.own_sum()) throw_damaged("the checksum of its first bytes does not match");
  if (p.header_bytes > kMostHeader) throw_damaged("its header is too long");
  const uint64_t rest = source.size() - sizeof(p);
  if (p.header_bytes > rest || p.data_bytes != rest - p.header_bytes) {
    throw_damaged(fmt::format("it has {} instead of {}", counted(source.size(), "byte"),
                              sizeof(p) + p.header_bytes + p.data_bytes));
  }
  return p;
}

Json read_header(const ByteSource& source, const Preamble& p) {
  std::string header(p.header_bytes, '\0');
  source.read(sizeof(p), header.data(), header.size());
  if (crc32c(0, header.data(), header.size()) != p.header_sum)
    throw_damaged("the checksum of its header does not match");
  if (json_nesting(header) > kMostNesting) throw_damaged("its header is nested too deeply");
  Json json = Json::parse(header, nullptr, false);
  if (json.is_discarded()) throw_damaged("its header is no JSON");
  return json;
}

/// Reads all tensors into one block of memory, which each of them keeps alive.
std::vector<Tensor> read_tensors(const ByteSource& source, const Preamble& p, const Json& json) {
  require_bytes(p.data_bytes, "an artifact");
  Tensor block = Tensor::empty(DType::u8, {static_cast<int64_t>(p.data_bytes)});
  source.read(sizeof(p) + p.header_bytes, block.data(), p.data_bytes);
  if (crc32c(0, std::as_const(block).data(), p.data_bytes) != p.data_sum)
    throw_damaged("the checksum of its data does not match");
  std::vector<Tensor> tensors;
  uint64_t end = 0;  // tensors follow one another
  for (const Json& place : list(json, "tensors")) {
    if (!place.is_array() || place.size() != 3) throw_damaged("a tensor is something else");
    const Type type = type_from_json(place[0], place[1]);
    const auto offset = static_cast<uint64_t>(whole(place[2], 0, INT64_MAX));
    const size_t bytes = type.nbytes();
    if (offset != end || bytes > p.data_bytes - end) throw_damaged("a tensor is in no place");
    end = offset + padded(bytes);
    if (end > p.data_bytes) throw_damaged("a tensor is in no place");
    tensors.push_back(Tensor::wrap(type.dtype, type.dims(),
                                   static_cast<std::byte*>(block.data()) + offset, block.owner()));
  }
  return tensors;
}

uint64_t natural(const Json& json) {
  if (!json.is_number_unsigned()) throw_damaged("a count is something else");
  return json.get<uint64_t>();
}

void read_settings(const Json& json, Artifact* to) {
  to->lr = real(member(json, "lr"));
  if (!(to->lr >= 0 && fits_float32(to->lr))) throw_damaged("its learning rate is out of range");
  const Json& schedule = list(json, "schedule");
  if (schedule.size() != 4) throw_damaged("its schedule is something else");
  to->schedule = {.kind = text(schedule[0]),
                  .warmup_steps = whole(schedule[1], 0, INT64_MAX),
                  .total_steps = whole(schedule[2], 0, INT64_MAX),
                  .min_lr_ratio = real(schedule[3])};
  try {
    check_schedule(to->schedule);
  } catch (const ModelError& error) {
    throw_damaged(error.parts().what);
  }
  to->steps = whole(member(json, "steps"), 0, INT64_MAX);
  to->seed = natural(member(json, "seed"));
  to->run_count = natural(member(json, "run_count"));
  const Json& checks = member(json, "check_finite");
  if (!checks.is_boolean()) throw_damaged("'check_finite' is something else");
  to->check_finite = checks.get<bool>();
  for (const Json& group : list(json, "groups")) {
    if (!group.is_array() || group.size() != 2 || !group[1].is_array() || group[1].empty())
      throw_damaged("a group is something else");
    std::vector<double>& settings = to->groups[static_cast<size_t>(whole(group[0], 0, INT32_MAX))];
    for (const Json& x : group[1]) {
      settings.push_back(real(x));
      if (!fits_float32(settings.back())) throw_damaged("a group's number is out of range");
    }
  }
}

}  // namespace

std::string artifact_bytes(const Artifact& artifact) {
  std::string bytes;
  Written(artifact).to(
      [&](const void* data, size_t size) { bytes.append(static_cast<const char*>(data), size); });
  return bytes;
}

std::string seal_artifact(std::string header, std::string_view data) {
  header.resize(padded(header.size()), ' ');
  Preamble preamble{.header_sum = crc32c(0, header.data(), header.size()),
                    .header_bytes = header.size(),
                    .data_bytes = data.size(),
                    .data_sum = crc32c(0, data.data(), data.size())};
  preamble.sum = preamble.own_sum();
  std::string file(reinterpret_cast<const char*>(&preamble), sizeof(preamble));
  return file.append(header).append(data);
}

void write_artifact(const std::filesystem::path& path, const Artifact& artifact) {
  const Written image(artifact);
  write_file(path, [&](FileWriter& file) {
    image.to([&](const void* data, size_t size) { file.write(data, size); });
  });
}

Artifact read_artifact(const ByteSource& source) {
  Artifact artifact;
  try {
    const Preamble preamble = read_preamble(source);
    const Json json = read_header(source, preamble);
    std::vector<Tensor> tensors = read_tensors(source, preamble, json);
    read_settings(json, &artifact);
    std::unordered_map<std::string, Type> types;
    for (const Json& state : list(json, "states")) {
      if (!state.is_array() || state.size() != 3) throw_damaged("a state is something else");
      const auto i =
          static_cast<size_t>(whole(state[2], 0, static_cast<int64_t>(tensors.size()) - 1));
      if (!tensors[i].defined()) throw_damaged("two states share their bytes");
      const Type type{tensors[i].dtype(), to_shape(tensors[i].dims())};
      artifact.states.push_back({text(state[0]), static_cast<StateRole>(index_of(state[1], kRoles)),
                                 std::exchange(tensors[i], {})});
      if (!types.emplace(artifact.states.back().name, type).second)
        throw_damaged("two states have one name");
    }
    for (const Json& program : list(json, "programs")) {
      ArtifactProgram entry{
          .purpose = static_cast<Purpose>(index_of(member(program, "purpose"), kPurposes))};
      entry.graph = graph_from_json(member(program, "graph"), tensors, &types, &entry.views);
      require_known(entry.graph, entry.views);
      artifact.programs.push_back(std::move(entry));
    }
  } catch (const DataError& error) {  // the file became shorter while it was read
    throw_damaged(error.parts().what);
  } catch (const InternalError& error) {  // a required attribute is missing
    throw_damaged(error.parts().what);
  }
  return artifact;
}

}  // namespace steep
