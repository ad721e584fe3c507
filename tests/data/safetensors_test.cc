#include "data/safetensors.h"

#include <gtest/gtest.h>

#include "steep/error.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

using testing::same_bits;

std::string with_header(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i)
    bytes[static_cast<size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

std::map<std::string, Tensor> read(const std::string& bytes, const Limits& limits = {}) {
  return read_safetensors(MemorySource(std::as_bytes(std::span(bytes)), "test"), limits);
}

std::map<std::string, Tensor> samples() {
  return {{"a", Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3})},
          {"b/ü", Tensor::from<int64_t>({-1}, {})},
          {"c", Tensor::from<double>({}, {0, 4})},
          {"d", Tensor::from<uint8_t>({9, 8, 7}, {3})}};
}

class SafetensorsFile : public testing::TempFolder {
 protected:
  std::string written(const std::map<std::string, Tensor>& tensors) {
    const auto path = folder() / "x.safetensors";
    std::filesystem::remove(path);
    FileWriter file(path);
    write_safetensors(file, tensors, {{"key", "value"}});
    file.sync();
    return testing::read_bytes(path);
  }
};

TEST_F(SafetensorsFile, RoundTrip) {
  const std::string bytes = written(samples());
  const auto tensors = read(bytes);
  ASSERT_EQ(tensors.size(), samples().size());
  for (const auto& [name, tensor] : samples())
    EXPECT_TRUE(same_bits(tensors.at(name), tensor)) << name;
  const auto header =
      read_safetensors_header(MemorySource(std::as_bytes(std::span(bytes)), "test"));
  EXPECT_EQ(header.metadata.at("key"), "value");
  EXPECT_EQ(header.entries.at(0).offset % 64, 0u);
}

TEST_F(SafetensorsFile, EveryTruncationIsRefused) {
  const std::string bytes = written(samples());
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_THROW(read(bytes.substr(0, n)), DataError) << n << " of " << bytes.size() << " bytes";
  }
  EXPECT_THROW(read(bytes + "x"), DataError);
}

TEST_F(SafetensorsFile, EveryHeaderBitFlipIsRefusedOrHarmless) {
  const std::string bytes = written(samples());
  const size_t header = bytes.size() - (6 * 4 + 8 + 3);
  for (size_t bit = 0; bit < header * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    try {
      // A flipped bit may change a letter of a name; sizes and offsets must still agree.
      size_t total = 0;
      for (const auto& [name, tensor] : read(flipped)) total += tensor.nbytes();
      EXPECT_EQ(total, bytes.size() - header) << "bit " << bit;
    } catch (const DataError&) {
    }
  }
}

struct Bad {
  const char* name;
  std::string bytes;
};

class BadSafetensors : public ::testing::TestWithParam<Bad> {};

TEST_P(BadSafetensors, IsRefused) { EXPECT_THROW(read(GetParam().bytes), DataError); }

const std::string kFour(4, '\0');
const std::string kOne = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";

INSTANTIATE_TEST_SUITE_P(
    Attacks, BadSafetensors,
    ::testing::Values(
        Bad{"empty", ""}, Bad{"short", "abc"}, Bad{"length_only", std::string(8, '\0')},
        Bad{"huge_header", std::string(8, '\xff')},
        Bad{"header_past_end", with_header("{}", "").substr(0, 9)},
        Bad{"not_json", with_header("{nope", "")}, Bad{"array", with_header("[]", "")},
        Bad{"trailing_text", with_header("{} {}", "")},
        Bad{"trailing_bytes", with_header("{}", "x")},
        Bad{"twice", with_header("{" + kOne + "," + kOne + "}", kFour)},
        Bad{"field_twice",
            with_header(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                        kFour)},
        Bad{"overlap",
            with_header("{" + kOne + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                        kFour)},
        Bad{"hole",
            with_header("{" + kOne + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                        kFour + kFour + kFour)},
        Bad{"backwards",
            with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", kFour)},
        Bad{"three_offsets",
            with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", kFour)},
        Bad{"one_offset",
            with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", kFour)},
        Bad{"past_end",
            with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", kFour)},
        Bad{"wrong_count",
            with_header(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,4]}})", kFour)},
        Bad{"overflow",
            with_header(
                R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
                "")},
        Bad{"extent_past_int64",
            with_header(
                R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})",
                kFour)},
        Bad{"negative",
            with_header(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", kFour)},
        Bad{"fraction",
            with_header(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", kFour)},
        Bad{"dtype",
            with_header(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", kFour)},
        Bad{"no_dtype", with_header(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", kFour)},
        Bad{"unknown_field",
            with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", kFour)},
        Bad{"nested", with_header("{\"a\":" + std::string(1'000'000, '['), "")},
        Bad{"rank", with_header(R"({"a":{"dtype":"U8","shape":[1)" +
                                    [] {
                                      std::string ones;
                                      for (int i = 0; i < 100; ++i) ones += ",1";
                                      return ones;
                                    }() +
                                    R"(],"data_offsets":[0,1]}})",
                                "x")},
        Bad{"metadata_number", with_header(R"({"__metadata__":{"a":1}})", "")},
        Bad{"bool",
            with_header(R"({"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", "\2")}),
    [](const auto& info) { return info.param.name; });

TEST(Safetensors, LimitsAreKept) {
  const std::string bytes = with_header("{" + kOne + "}", kFour);
  EXPECT_EQ(read(bytes).size(), 1u);
  try {
    read(bytes, {.max_bytes = 3});
    FAIL() << "nothing was thrown";
  } catch (const DataError& error) {  // which must not call the file invalid
    EXPECT_EQ(error.parts().what.find("valid"), std::string::npos);
    EXPECT_NE(error.parts().remedy.find("max_bytes"), std::string::npos);
  }
  EXPECT_THROW(read(bytes, {.max_arrays = 0}), DataError);
}

}  // namespace
}  // namespace steep
