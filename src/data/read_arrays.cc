#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

#include "data/csv.h"
#include "data/files.h"
#include "data/npz.h"
#include "data/safetensors.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "steep/data.h"
#include "steep/error.h"

namespace steep {
namespace {

/// SplitMix64 (Steele, Lea & Flood 2014). Not std::shuffle, whose results differ between standard
/// libraries.
class Stream {
 public:
  explicit Stream(uint64_t state) : state_(state) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, n), without bias.
  uint64_t below(uint64_t n) {
    const uint64_t reject = (0 - n) % n;  // 2^64 mod n
    uint64_t value = next();
    while (value < reject) value = next();
    return value % n;
  }

 private:
  uint64_t state_;
};

int64_t row_bytes(const Tensor& tensor) {
  Dims row(tensor.dims().begin() + 1, tensor.dims().end());
  return element_count(row) * static_cast<int64_t>(size_of(tensor.dtype()));
}

void need_rows(const Tensor& tensor) {
  if (tensor.dims().empty()) {
    throw ShapeError(ErrorParts{.what = "A scalar has no rows.", .expected = "at least one axis"});
  }
}

/// Arrays in a mapped file may begin at any address.
bool is_aligned(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data()) %
             std::max<size_t>(size_of(tensor.dtype()), 1) ==
         0;
}

/// Refuses a file of an unknown format; the error names the format that it looks like.
[[noreturn]] void refuse_kind(const FileSource& source, std::string_view start) {
  constexpr std::pair<std::string_view, const char*> kKinds[] = {{"\x89HDF\r\n", "HDF5"},
                                                                 {"PAR1", "Parquet"},
                                                                 {"ARROW1", "Arrow"},
                                                                 {"\x1f\x8b", "a gzip file"},
                                                                 {"\x80\x04", "a Python pickle"}};
  const auto kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                 [&](const auto& k) { return start.starts_with(k.first); });
  const bool text = std::all_of(start.begin(), start.end(), [](char c) {
    return c == '\t' || c == '\n' || c == '\r' || static_cast<unsigned char>(c) >= ' ';
  });
  throw DataError(ErrorParts{
      .what = source.name() + " is neither an .npz, .npy nor a .safetensors file.",
      .expected = "arrays in one of these formats, whatever the file's name; or a name in .csv",
      .received = source.size() < start.size()
                      ? fmt::format("a file of {}", counted(source.size(), "byte"))
                  : kind != std::end(kKinds) ? kind->second
                  : text                     ? "text, for instance CSV"
                                             : "bytes of another format",
      .remedy = "Read it with a package that knows it, and write it with "
                "numpy.savez(\"data.npz\", x=…, label=…)."});
}

}  // namespace

namespace {

std::map<std::string, Tensor> arrays_of(const std::filesystem::path& path, const Limits& limits,
                                        bool mapped) {
  const Budget budget(limits);
  FileSource source(path);
  if (is_csv(path.string())) {
    std::map<std::string, Tensor> columns;
    for (CsvColumn& c : read_csv(source, limits)) {
      if (c.name.empty()) continue;
      if (c.refused) throw DataError(std::move(*c.refused));
      columns[c.name] = std::move(c.values);
    }
    return columns;
  }
  // Files of both formats begin with eight bytes that identify them. In safetensors they are a
  // length of at most 100 MB, so that the last ones are zeros. In a zip file they end with the
  // version that the first member needs, or with the counts of an empty archive.
  unsigned char magic[8] = {};
  source.read(0, magic, std::min<uint64_t>(sizeof magic, source.size()));
  const bool member = std::memcmp(magic, "PK\3\4", 4) == 0 && (magic[4] | magic[5]) != 0;
  const bool empty = std::memcmp(magic, "PK\5\6", 4) == 0;
  if (member || empty) return mapped ? map_npz(source, limits) : read_npz(source, limits);
  if (std::memcmp(magic, "\x93NUMPY", 6) == 0) {
    const std::string name = path.stem().string();
    return {{name, mapped ? map_npy(source, name, limits) : read_npy(source, name, limits)}};
  }
  if (source.size() < sizeof magic || magic[4] != 0 || magic[5] != 0 || magic[6] != 0 ||
      magic[7] != 0) {
    refuse_kind(source, {reinterpret_cast<const char*>(magic), sizeof magic});
  }
  return read_safetensors(source, limits);
}

}  // namespace

std::map<std::string, Tensor> load_arrays(const std::filesystem::path& path, const Limits& limits) {
  return arrays_of(path, limits, false);
}

std::map<std::string, Tensor> map_arrays(const std::filesystem::path& path, const Limits& limits) {
  return arrays_of(path, limits, true);
}

void save_arrays(const std::filesystem::path& path, const std::map<std::string, Tensor>& arrays) {
  const std::string kind = path.extension().string();
  if (kind != ".npz" && kind != ".safetensors") {
    throw DataError(ErrorParts{.what = "Cannot tell in what format to write " + path.string() + ".",
                               .expected = "a name that ends in .npz or .safetensors"});
  }
  write_file(path, [&](FileWriter& file) {
    if (kind == ".npz") {
      write_npz(file, arrays);
    } else {
      write_safetensors(file, arrays);
    }
  });
}

Tensor rows(const Tensor& tensor, int64_t begin, int64_t end) {
  need_rows(tensor);
  if (begin < 0 || end < begin || end > tensor.dims()[0]) {
    throw ShapeError(ErrorParts{.what = "Rows are out of range.",
                                .expected = fmt::format("rows of {}", to_string(tensor.dims())),
                                .received = fmt::format("[{}, {})", begin, end)});
  }
  Dims dims = tensor.dims();
  dims[0] = end - begin;
  auto* first = static_cast<char*>(const_cast<void*>(tensor.data())) + begin * row_bytes(tensor);
  return Tensor::wrap(tensor.dtype(), std::move(dims), first, tensor.owner());
}

Tensor take_rows(const Tensor& tensor, const std::vector<int64_t>& indices) {
  need_rows(tensor);
  Dims dims = tensor.dims();
  for (int64_t index : indices) {
    if (index < 0 || index >= dims[0]) {
      throw ShapeError(ErrorParts{.what = "A row is out of range.",
                                  .expected = fmt::format("0 to {}", dims[0] - 1),
                                  .received = std::to_string(index)});
    }
  }
  const auto bytes = static_cast<size_t>(row_bytes(tensor));
  dims[0] = static_cast<int64_t>(indices.size());
  Tensor out = Tensor::empty(tensor.dtype(), std::move(dims));
  if (bytes == 0) return out;
  const auto* from = static_cast<const char*>(tensor.data());
  auto* to = static_cast<char*>(out.data());
  for (int64_t index : indices) {
    std::memcpy(to, from + static_cast<size_t>(index) * bytes, bytes);
    to += bytes;
  }
  return out;
}

Batches::Batches(std::vector<Tensor> arrays, BatchOptions options)
    : arrays_(std::move(arrays)), options_(std::move(options)) {
  if (options_.batch_size < 1) {
    throw DataError(ErrorParts{.what = "The batch size must be positive.",
                               .received = std::to_string(options_.batch_size)});
  }
  if (arrays_.empty()) throw DataError("There is no array to make batches of.");
  for (const Tensor& array : arrays_) {
    need_rows(array);
    if (array.dims()[0] != arrays_[0].dims()[0]) {
      throw ShapeError(ErrorParts{
          .what = "Arrays have different numbers of rows.",
          .expected = fmt::format("{}, as the first array", counted(arrays_[0].dims()[0], "row")),
          .received = counted(array.dims()[0], "row")});
    }
  }
  rows_ = arrays_[0].dims()[0];
  for (const int64_t row : options_.rows) {
    if (row >= 0 && row < rows_) continue;
    throw ShapeError(ErrorParts{.what = "A row is out of range.",
                                .expected = fmt::format("0 to {}", rows_ - 1),
                                .received = std::to_string(row)});
  }
  if (!options_.rows.empty()) rows_ = static_cast<int64_t>(options_.rows.size());
  if (rows_ == 0 || count() == 0) {
    throw DataError(ErrorParts{.what = "There are too few rows for one batch.",
                               .received = counted(rows_, "row")});
  }
}

int64_t Batches::count() const {
  const bool rest = !options_.drop_last && rows_ % options_.batch_size != 0;
  return rows_ / options_.batch_size + (rest ? 1 : 0);
}

void Batches::order_for(int64_t epoch) {
  if (epoch_ == epoch) return;
  order_.resize(static_cast<size_t>(rows_));
  std::iota(order_.begin(), order_.end(), int64_t{0});
  // The orders of two epochs must not be shifted copies of each other, so the number of the epoch
  // is mixed first.
  Stream stream(options_.seed ^ Stream(static_cast<uint64_t>(epoch)).next());
  for (uint64_t i = static_cast<uint64_t>(rows_); i > 1; --i) {
    std::swap(order_[i - 1], order_[stream.below(i)]);
  }
  epoch_ = epoch;
}

std::vector<Tensor> Batches::get(int64_t epoch, int64_t batch) {
  if (epoch < 0 || batch < 0 || batch >= count()) {
    throw DataError(ErrorParts{.what = "There is no such batch.",
                               .expected = fmt::format("0 to {}", count() - 1),
                               .received = fmt::format("epoch {}, batch {}", epoch, batch)});
  }
  const int64_t begin = batch * options_.batch_size;
  const int64_t end = begin + std::min(rows_ - begin, options_.batch_size);
  std::vector<Tensor> out;
  out.reserve(arrays_.size());
  std::vector<int64_t> indices(static_cast<size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  if (options_.shuffle) {
    order_for(epoch);
    std::copy(order_.begin() + begin, order_.begin() + end, indices.begin());
  }
  for (int64_t& row : indices) {
    if (!options_.rows.empty()) row = options_.rows[static_cast<size_t>(row)];
  }
  for (const Tensor& array : arrays_) {
    const bool in_place = !options_.shuffle && options_.rows.empty() && is_aligned(array);
    out.push_back(in_place ? rows(array, begin, end) : take_rows(array, indices));
  }
  return out;
}

}  // namespace steep
