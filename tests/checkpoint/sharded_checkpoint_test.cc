// Checkpoints whose moments several processes write: what is read, and damaged and foreign shards.
// Failing calls, kills and power losses are tested in tests/attack.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "attack/saves.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "data/safetensors.h"
#include "runtime/budget.h"
#include "steep/error.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

namespace fs = std::filesystem;
using testing::read_bytes;
using testing::same;
using testing::same_bits;
using testing::write_bytes;
using testing::write_shards;
using Moments = std::map<std::string, Tensor>;

/// With as many moments as the largest number of shards, less two: some are empty.
Checkpoint sample(float value) {
  Checkpoint checkpoint = testing::sample(value);
  for (int i = 0; i < 4; ++i) {
    const std::string name = "exp_avg/w" + std::to_string(i);
    checkpoint.moments[name] = Tensor::from<float>({value, 1, 0.5F}, {3});
  }
  return checkpoint;
}

class ShardedCheckpoint : public testing::MemoryFolder {
 protected:
  fs::path path() const { return folder() / "run" / "checkpoint"; }
  fs::path shard(int number, int count) const {
    return path() / fmt::format("optimizer-{:05}-of-{:05}.safetensors", number, count);
  }
  std::string why_refused() const {
    try {
      read_checkpoint(path());
    } catch (const CheckpointError& error) {
      return error.parts().what;
    }
    ADD_FAILURE() << "it is read";
    return "";
  }
  /// Writes these files of moments, and a manifest that lists them.
  void forge(const std::map<std::string, Moments>& files) const {
    fs::create_directories(path());
    std::map<std::string, FileRecord> records;
    for (const auto& [name, tensors] : files) {
      fs::remove(path() / name);
      FileWriter file(path() / name);
      write_safetensors(file, tensors);
      records[name] = {file.bytes(), file.crc()};
    }
    write_bytes(path() / "manifest.json", write_manifest(sample(1), records));
  }
};

TEST_F(ShardedCheckpoint, OfAnyNumberOfShardsIsTheWholeOne) {
  float value = 0;
  for (const size_t count : {7, 1, 2, 3, 4, 7, 2}) {
    const Checkpoint checkpoint = sample(++value);
    write_shards(path(), checkpoint, count);
    EXPECT_TRUE(same(read_checkpoint(path()), checkpoint)) << count;
    EXPECT_EQ(testing::entries(path()), count + 2);
    EXPECT_EQ(testing::entries(path().parent_path()), 1u);
  }
  write_checkpoint(path(), sample(99));  // over shards
  EXPECT_TRUE(same(read_checkpoint(path()), sample(99)));
  EXPECT_EQ(testing::entries(path()), 3u);
}

TEST_F(ShardedCheckpoint, OfMoreShardsThanFilesMayBeOpen) {
  write_shards(path(), sample(1), 300);
  EXPECT_TRUE(same(read_checkpoint(path()), sample(1)));
}

TEST_F(ShardedCheckpoint, EveryDamageToAShardIsRefused) {
  write_shards(path(), sample(1), 7);
  for (int number = 1; number <= 7; ++number) {
    const fs::path file = shard(number, 7);
    const std::string bytes = read_bytes(file);
    for (size_t n = 0; n < bytes.size(); ++n) {
      write_bytes(file, bytes.substr(0, n));
      EXPECT_THROW(read_checkpoint(path()), CheckpointError) << file << " cut to " << n;
      std::string flipped = bytes;
      flipped[n] = static_cast<char>(flipped[n] ^ (1 << (n % 8)));
      write_bytes(file, flipped);
      EXPECT_THROW(read_checkpoint(path()), CheckpointError) << file << " byte " << n;
    }
    fs::remove(file);
    EXPECT_NE(why_refused().find(file.filename().string()), std::string::npos);
    write_bytes(file, bytes);
  }
  EXPECT_TRUE(same(read_checkpoint(path()), sample(1)));
}

TEST_F(ShardedCheckpoint, AShardOfAnotherSaveIsRefused) {
  write_shards(path(), sample(1), 3);
  const std::string other = read_bytes(shard(2, 3));
  write_shards(path(), sample(2), 3);
  const std::string own = read_bytes(shard(2, 3));
  ASSERT_EQ(own.size(), other.size());
  write_bytes(shard(2, 3), other);
  EXPECT_NE(why_refused().find("its checksum does not match"), std::string::npos);
  write_bytes(shard(2, 3), read_bytes(shard(1, 3)));
  why_refused();
}

TEST_F(ShardedCheckpoint, HostileListsOfShardsAreRefused) {
  const Moments one{{"exp_avg/w", Tensor::scalar(1.0F)}}, two{{"exp_avg/b", Tensor::scalar(2.0F)}};
  const std::string first = "optimizer-00001-of-00002.safetensors",
                    second = "optimizer-00002-of-00002.safetensors";
  forge({{"model.safetensors", {}}, {first, one}, {second, two}});
  EXPECT_EQ(read_checkpoint(path()).moments.size(), 2u);
  forge({{"model.safetensors", {}}, {first, one}, {second, one}});
  EXPECT_NE(why_refused().find("another shard has the tensor 'exp_avg/w'"), std::string::npos);
  const std::string damaged = "its list of files is damaged";
  for (const auto& files : std::vector<std::map<std::string, Moments>>{
           {{"model.safetensors", {}}, {first, one}},
           {{"model.safetensors", {}}, {second, two}},
           {{"model.safetensors", {}}},
           {{first, one}, {second, two}},
           {{"model.safetensors", {}}, {first, one}, {"optimizer.safetensors", two}},
           {{"model.safetensors", {}}, {first, one}, {"optimizer-00002-of-00003.safetensors", two}},
           {{"model.safetensors", {}}, {first, one}, {second, two}, {"x.safetensors", {}}},
       }) {
    forge(files);
    EXPECT_NE(why_refused().find(damaged), std::string::npos);
  }
  write_bytes(path() / "manifest.json", write_manifest(sample(1), {}));
  why_refused();
}

TEST_F(ShardedCheckpoint, ShardsThatCouldNotBeLoadedReplaceNothing) {
  write_shards(path(), sample(1), 2);
  PendingCheckpoint pending(path());
  write_checkpoint(pending.folder(), sample(2));
  const FileRecord other = write_shard(pending.folder(), sample(2).moments, 1, 2);
  EXPECT_THROW(pending.finish({&other, 1}), IoError);
  EXPECT_TRUE(same(read_checkpoint(path()), sample(1)));
}

TEST_F(ShardedCheckpoint, OnlyWantedMomentsAreRead) {
  const Checkpoint checkpoint = sample(1);
  write_shards(path(), checkpoint, 7);
  const auto wants = [](const std::string& name) { return name == "exp_avg/w2"; };
  const auto expect_wanted = [&](const Checkpoint& read) {
    ASSERT_EQ(read.moments.size(), checkpoint.moments.size());
    for (const auto& [name, tensor] : read.moments) {
      EXPECT_EQ(tensor.dims(), checkpoint.moments.at(name).dims());
      EXPECT_EQ(tensor.data() != nullptr, wants(name)) << name;
    }
    EXPECT_TRUE(same_bits(read.moments.at("exp_avg/w2"), checkpoint.moments.at("exp_avg/w2")));
  };
  expect_wanted(read_checkpoint(path(), wants));
  // The limit is on what is read. exp_avg/w is in shard 1, exp_avg/w2 in shard 4.
  Limits limits;
  limits.max_bytes = 16;
  {
    const Budget budget(limits);
    expect_wanted(read_checkpoint(path(), wants));
    EXPECT_THROW(read_checkpoint(path()), CheckpointError);
  }
  for (const int number : {1, 4}) {
    const std::string bytes = read_bytes(shard(number, 7));
    std::string damaged = bytes;
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    write_bytes(shard(number, 7), damaged);
    if (number == 1) {
      expect_wanted(read_checkpoint(path(), wants));
    } else {
      EXPECT_THROW(read_checkpoint(path(), wants), CheckpointError);
    }
    write_bytes(shard(number, 7), bytes);
  }
}

TEST_F(ShardedCheckpoint, NamesThatNoShardHasAreForeign) {
  for (const char* name :
       {"optimizer-1-of-2.safetensors", "optimizer-00000-of-00002.safetensors",
        "optimizer-00001-of-00002.safetensors.txt", "optimizer-.safetensors",
        "optimizer-00001-of-.safetensors", "optimizer-00001-of-00001.safetensors",
        "optimizer-99999999999999999999-of-00002.safetensors"}) {
    fs::create_directories(path());
    write_bytes(path() / name, "years of work");
    EXPECT_THROW(write_shards(path(), sample(1), 2), IoError) << name;
    EXPECT_EQ(read_bytes(path() / name), "years of work");
    fs::remove_all(path());
  }
}

}  // namespace
}  // namespace steep
