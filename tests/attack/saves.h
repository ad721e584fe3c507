// Shared by the attacks on saves: objects that are saved with a version number, as a checkpoint and
// as a single file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/files.h"
#include "steep/error.h"
#include "train/temp_folder.h"

namespace steep::testing {

inline Checkpoint sample(float value, int64_t step = 17) {
  return {.fingerprint = "0123456789abcdef",
          .weights = {{"w", Tensor::from<float>({value, 2, 3}, {3})}, {"b", Tensor::scalar(value)}},
          .moments = {{"exp_avg/w", Tensor::from<float>({4, 5, value}, {3})}},
          .step = step,
          .seed = ~uint64_t{0},
          .run_count = 18,
          .lr = 0.1,
          .schedule = "constant",
          .user = R"({"epoch":3,"note":"a b"})"};
}

inline bool same(const Checkpoint& a, const Checkpoint& b) {
  const auto equal = [](const auto& x, const auto& y) {
    return x.size() == y.size() && std::all_of(x.begin(), x.end(), [&](const auto& item) {
             return y.count(item.first) == 1 && same_bits(item.second, y.at(item.first));
           });
  };
  return a.fingerprint == b.fingerprint && a.step == b.step && a.seed == b.seed &&
         a.run_count == b.run_count && a.lr == b.lr && a.schedule == b.schedule &&
         a.user == b.user && equal(a.weights, b.weights) && equal(a.moments, b.moments);
}

/// An object that is saved repeatedly, in versions 0, 1, ….
struct Saved {
  const char* name;
  void (*save)(const std::filesystem::path&, int64_t version);
  /// The version at the path; none if there is nothing. Throws steep::Error when it cannot be
  /// loaded; DataError when it is incomplete.
  std::optional<int64_t> (*load)(const std::filesystem::path&);
};

inline Checkpoint version_of_checkpoint(int64_t version) {
  return sample(static_cast<float>(version % 1000), version);
}

/// Writes a checkpoint as so many processes do.
inline void write_shards(const std::filesystem::path& path, Checkpoint checkpoint, size_t count) {
  std::vector<std::map<std::string, Tensor>> shards(count);
  size_t next = 0;
  for (auto& [name, tensor] : checkpoint.moments) {
    if (const size_t shard = next++ % count; shard > 0) {
      shards[shard][name] = tensor;
      tensor = Tensor::wrap(tensor.dtype(), tensor.dims(), nullptr, nullptr);
    }
  }
  PendingCheckpoint pending(path);
  const std::string name = pending.folder().filename().string();
  write_checkpoint(pending.folder(), checkpoint);
  std::vector<FileRecord> others;
  for (size_t i = 1; i < count; ++i) {
    others.push_back(write_shard(folder_beside(path, name), shards[i], i, count));
  }
  pending.finish(others);
}

inline std::string version_of_file(int64_t version) {
  return std::to_string(version) + "\n" + std::string(200, static_cast<char>('a' + version % 26)) +
         "\nend of " + std::to_string(version);
}

inline const Saved kCheckpoint{"checkpoint",
                               [](const std::filesystem::path& path, int64_t version) {
                                 write_checkpoint(path, version_of_checkpoint(version));
                               },
                               [](const std::filesystem::path& path) -> std::optional<int64_t> {
                                 Checkpoint read;
                                 try {
                                   read = read_checkpoint(path);
                                 } catch (const CheckpointError& error) {
                                   if (error.parts().what.ends_with("the folder does not exist."))
                                     return {};
                                   throw;
                                 }
                                 if (!same(read, version_of_checkpoint(read.step)))
                                   throw DataError("a mixed checkpoint");
                                 return read.step;
                               }};

inline const Saved kSharded{"sharded",
                            [](const std::filesystem::path& path, int64_t version) {
                              const size_t shards = 2 + static_cast<size_t>(version % 2);
                              write_shards(path, version_of_checkpoint(version), shards);
                            },
                            kCheckpoint.load};

/// Written like models, gradients, traces and arrays.
inline const Saved kFile{"file",
                         [](const std::filesystem::path& path, int64_t version) {
                           const std::string text = version_of_file(version);
                           write_file(path, [&](FileWriter& file) {
                             file.write(text.substr(0, text.size() / 2));
                             file.write(text.substr(text.size() / 2));
                           });
                         },
                         [](const std::filesystem::path& path) -> std::optional<int64_t> {
                           const std::string text = read_bytes(path);
                           if (!std::filesystem::exists(path)) return {};
                           const int64_t version = std::atoll(text.c_str());
                           if (text != version_of_file(version)) throw DataError("a mixed file");
                           return version;
                         }};

/// The number of entries of a folder.
inline size_t entries(const std::filesystem::path& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

}  // namespace steep::testing
