#include "data/npz.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "data/npy.h"
#include "steep/error.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

using testing::same_bits;

std::map<std::string, Tensor> read(const std::string& bytes, const Limits& limits = {}) {
  return read_npz(MemorySource(std::as_bytes(std::span(bytes)), "test"), limits);
}

void put(std::string* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(i < 8 ? value >> (8 * i) : 0));
}

std::string deflated(const std::string& text) {
  z_stream zip{};
  deflateInit2(&zip, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 1000, '\0');
  zip.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zip.avail_in = static_cast<uInt>(text.size());
  zip.next_out = reinterpret_cast<Bytef*>(out.data());
  zip.avail_out = static_cast<uInt>(out.size());
  deflate(&zip, Z_FINISH);
  out.resize(zip.total_out);
  deflateEnd(&zip);
  return out;
}

struct ZipOptions {
  int method = 0;
  bool zip64 = false;  ///< sizes in an extra field, as NumPy writes large arrays
  int64_t claimed = -1;
  int flags = 0;
};

/// An archive of one member, written by hand.
std::string zip_of(const std::string& content, const ZipOptions& o = {}) {
  const std::string name = "x.npy";
  const std::string data = o.method == 8 ? deflated(content) : content;
  const uint64_t size = o.claimed >= 0 ? static_cast<uint64_t>(o.claimed) : content.size();
  std::string extra;
  if (o.zip64) {
    put(&extra, 1, 2);
    put(&extra, 16, 2);
    put(&extra, size, 8);
    put(&extra, data.size(), 8);
  }
  std::string common;
  put(&common, 45, 2);
  put(&common, static_cast<uint64_t>(o.flags), 2);
  put(&common, static_cast<uint64_t>(o.method), 2);
  put(&common, 0, 4);
  put(&common,
      ::crc32(0, reinterpret_cast<const Bytef*>(content.data()), static_cast<uInt>(content.size())),
      4);
  put(&common, o.zip64 ? 0xffffffff : data.size(), 4);
  put(&common, o.zip64 ? 0xffffffff : size, 4);
  put(&common, name.size(), 2);
  put(&common, extra.size(), 2);
  std::string out = "PK\3\4" + common + name + extra + data;
  std::string directory = "PK\1\2";
  put(&directory, 45, 2);
  directory += common;
  put(&directory, 0, 2 + 2 + 2 + 4);
  put(&directory, 0, 4);
  directory += name + extra;
  const size_t start = out.size();
  out += directory + "PK\5\6";
  put(&out, 0, 4);
  put(&out, 1, 2);
  put(&out, 1, 2);
  put(&out, directory.size(), 4);
  put(&out, start, 4);
  put(&out, 0, 2);
  return out;
}

std::string npy(const std::string& dictionary, const std::string& data, char version = 1) {
  std::string out = "\x93NUMPY";
  out += {version, '\0'};
  put(&out, dictionary.size(), version == 1 ? 2 : 4);
  return out + dictionary + data;
}

std::string bytes_of(const Tensor& t) { return {static_cast<const char*>(t.data()), t.nbytes()}; }

const Tensor kMatrix = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
const std::string kDictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";

class NpzFile : public testing::TempFolder {};

TEST_F(NpzFile, RoundTrip) {
  const std::map<std::string, Tensor> arrays{{"a", kMatrix},
                                             {"b", Tensor::scalar<int64_t>(-7)},
                                             {"c", Tensor::from<double>({}, {0, 2})},
                                             {"d", Tensor::from<uint8_t>({1, 2, 3}, {3})}};
  save_arrays(folder() / "x.npz", arrays);
  const auto read_back = load_arrays(folder() / "x.npz");
  ASSERT_EQ(read_back.size(), arrays.size());
  for (const auto& [name, array] : arrays)
    EXPECT_TRUE(same_bits(read_back.at(name), array)) << name;
  save_arrays(folder() / "x.safetensors", arrays);
  EXPECT_TRUE(same_bits(load_arrays(folder() / "x.safetensors").at("a"), kMatrix));
  EXPECT_THROW(save_arrays(folder() / "x.csv", arrays), DataError);
}

TEST_F(NpzFile, AnArrayWithoutElementsMayHaveNoAddress) {
  const Tensor none = Tensor::wrap(DType::f32, {0, 3}, nullptr, nullptr);
  for (const char* name : {"x.npz", "x.safetensors"}) {
    save_arrays(folder() / name, {{"none", none}, {"some", kMatrix}});
    const auto read_back = load_arrays(folder() / name);
    EXPECT_EQ(read_back.at("none").dims(), none.dims());
    EXPECT_TRUE(same_bits(read_back.at("some"), kMatrix));
  }
}

TEST_F(NpzFile, TypesThatNoFileHasAreRefused) {
  const auto one = [](DType dtype) {
    return std::map<std::string, Tensor>{{"x", Tensor::zeros(dtype, {1})}};
  };
  for (const DType dtype : {DType::f8e4m3fn, DType::i4}) {
    for (const char* name : {"x.npz", "x.safetensors"}) {
      try {
        save_arrays(folder() / name, one(dtype));
        ADD_FAILURE() << name << name_of(dtype);
      } catch (const DataError& error) {
        EXPECT_NE(error.parts().remedy.find("uint8"), std::string::npos) << error.what();
      }
    }
  }
  save_arrays(folder() / "x.safetensors", one(DType::bf16));
  EXPECT_THROW(save_arrays(folder() / "x.npz", one(DType::bf16)), DataError);
}

TEST_F(NpzFile, EveryTruncationIsRefused) {
  save_arrays(folder() / "x.npz", {{"a", kMatrix}});
  const std::string bytes = testing::read_bytes(folder() / "x.npz");
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_THROW(read(bytes.substr(0, n)), Error) << n;
}

TEST_F(NpzFile, EveryBitFlipIsAnErrorOrHarmless) {
  save_arrays(folder() / "x.npz", {{"a", kMatrix}});
  const std::string bytes = testing::read_bytes(folder() / "x.npz");
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    try {
      // Checksums cover the bytes of arrays, but not names and dates.
      for (const auto& [name, array] : read(flipped)) EXPECT_TRUE(same_bits(array, kMatrix)) << bit;
    } catch (const Error&) {
    }
  }
}

TEST(Npz, ReadsWhatNumpyWrites) {
  const std::string content = npy(kDictionary, bytes_of(kMatrix));
  for (int method : {0, 8}) {
    for (bool zip64 : {false, true}) {
      const auto arrays = read(zip_of(content, {.method = method, .zip64 = zip64}));
      EXPECT_TRUE(same_bits(arrays.at("x"), kMatrix)) << method << zip64;
    }
  }
  for (char version : {'\2', '\3'}) {
    EXPECT_TRUE(
        same_bits(read(zip_of(npy(kDictionary, bytes_of(kMatrix), version))).at("x"), kMatrix));
  }
}

TEST(Npz, FortranOrderBecomesRowMajor) {
  const Tensor columns = Tensor::from<float>({1, 4, 2, 5, 3, 6}, {6});
  const auto arrays = read(
      zip_of(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", bytes_of(columns))));
  EXPECT_TRUE(same_bits(arrays.at("x"), kMatrix));
}

TEST(Npz, OtherByteOrderIsSwapped) {
  Tensor swapped = kMatrix.clone();
  swap_bytes(swapped.data(), 6, 4);
  const auto arrays = read(zip_of(
      npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }", bytes_of(swapped))));
  EXPECT_TRUE(same_bits(arrays.at("x"), kMatrix));
}

TEST(Npz, RefusesPickles) {
  try {
    read(zip_of(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "\x80\x04.")));
    FAIL() << "a pickle was accepted";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("pickled"), std::string::npos);
  }
}

TEST(Npz, RefusesBombsAndLies) {
  const std::string content = npy(kDictionary, bytes_of(kMatrix));
  EXPECT_THROW(read(zip_of(content, {.method = 8, .zip64 = true, .claimed = int64_t{1} << 50})),
               DataError);
  EXPECT_THROW(read(zip_of(content, {.claimed = 7})), DataError);
  EXPECT_THROW(read(zip_of(content, {.method = 8, .claimed = 10})), DataError);
  EXPECT_THROW(read(zip_of(content, {.method = 12})), DataError);
  EXPECT_THROW(read(zip_of(content, {.flags = 1})), DataError);
  EXPECT_THROW(read(zip_of(content), {.max_bytes = 10}), DataError);
  EXPECT_THROW(read(zip_of(content), {.max_arrays = 0}), DataError);
  EXPECT_THROW(
      read(zip_of(npy(
          "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", ""))),
      Error);
}

class BadNpy : public ::testing::TestWithParam<const char*> {};

TEST_P(BadNpy, IsRefused) {
  NpyHeader header;
  EXPECT_NE(parse_npy_header(GetParam(), &header), "") << GetParam();
}

INSTANTIATE_TEST_SUITE_P(
    Headers, BadNpy,
    ::testing::Values(
        "", "{", "{}", "[]", "{'descr': '<f4'}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } x",
        "{'descr': '<f4', 'fortran_order': None, 'shape': (2,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 2, }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, }",
        "{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<U3', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': 'xf4', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"));

}  // namespace
}  // namespace steep
