#include "cli/read_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <system_error>
#include <utility>

#include "data/convert.h"
#include "data/csv.h"
#include "data/files.h"
#include "runtime/disk.h"
#include "steep/data.h"
#include "steep/error.h"
#include "tables/parquet.h"
#include "train/name_suggestions.h"

namespace steep::cli {

namespace {

/// Whether arrays differ at most in their first extent and in their dtype.
bool same_but_rows(const Tensor& a, const Tensor& b) {
  return !a.dims().empty() && !b.dims().empty() &&
         std::equal(a.dims().begin() + 1, a.dims().end(), b.dims().begin() + 1, b.dims().end());
}

/// Files that together have more than 1/kShare of the memory limit are mapped.
constexpr uintmax_t kShare = 4;

bool are_large(const std::vector<std::string>& paths, const Limits& limits) {
  uintmax_t sum = 0;
  for (const std::string& path : paths) {
    if (is_csv(path) || is_parquet(path)) continue;
    std::error_code error;
    const uintmax_t bytes = std::filesystem::file_size(path, error);
    if (!error)
      sum += std::min(bytes, limits.max_bytes - std::min<uintmax_t>(sum, limits.max_bytes));
  }
  return sum > limits.max_bytes / kShare;
}

bool same_names(const Arrays& a, const Arrays& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(),
                    [](const auto& x, const auto& y) { return x.first == y.first; });
}

bool has_data(const std::filesystem::path& path) {
  constexpr const char* kEndings[] = {".npz", ".npy", ".safetensors", ".csv", ".parquet", ".pq"};
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](const char* ending) { return path.extension() == ending; });
}

/// Paths of --data: files of arrays, and what find_images() takes.
struct Paths {
  std::vector<std::string> files{};
  std::vector<std::string> images{};
};

/// For a folder with files of data: these, sorted by name.
Paths sorted_out(const std::vector<std::string>& paths, const Limits& limits) {
  Paths result;
  std::vector<std::string>& files = result.files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      (has_image_name(path) ? result.images : files).push_back(path);
      continue;
    }
    const size_t before = files.size();
    for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      if (has_data(entry->path()) && !entry->is_directory(error)) files.push_back(entry->path());
      if (files.size() - before > limits.max_arrays) {
        throw DataError(ErrorParts{.what = path + " has too many files.",
                                   .expected = fmt::format("at most {}", limits.max_arrays)});
      }
    }
    if (error) throw_io("read the folder", path, error.value());
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
    if (files.size() > before) continue;
    if (!has_images(path)) {
      throw DataError(ErrorParts{.what = path + " is a folder without files of data.",
                                 .expected =
                                     "names in .npz, .npy, .safetensors, .csv or .parquet, or a "
                                     "folder of .jpg and .png files for each class"});
    }
    result.images.push_back(path);
  }
  return result;
}

/// An ImageSet as arrays.
Arrays arrays_of(const ImageSet& images) {
  const Dims dims{static_cast<int64_t>(images.files.size())};
  Tensor numbers = Tensor::empty(DType::i64, dims);
  std::iota(numbers.data<int64_t>(), numbers.data<int64_t>() + dims[0], int64_t{0});
  Arrays arrays{{kImageArray, std::move(numbers)}};
  if (images.labels.empty()) return arrays;
  Tensor labels = Tensor::empty(DType::i64, dims);
  std::copy(images.labels.begin(), images.labels.end(), labels.data<int64_t>());
  arrays[kImageLabels] = std::move(labels);
  return arrays;
}

/// Notes a column that is not numbers, as long as no file has numbers in it; else throws its error.
bool is_refused(const CsvColumn& column, Loaded* result) {
  const auto earlier = result->refused.find(column.name);
  if (!column.refused && earlier != result->refused.end()) throw DataError(earlier->second);
  if (!column.refused) return false;
  if (result->is_column(column.name)) throw DataError(*column.refused);
  const std::string& cell = column.refused->received;
  result->not_read[column.name] = column.name.empty() ? "a first column without a name"
                                  : cell == "''"      ? "an empty cell"
                                                      : cell + " is no number";
  if (!column.name.empty()) result->refused.emplace(column.name, *column.refused);
  return true;
}

/// `large`: maps arrays that can be mapped.
DataFile read_file(const std::string& path, bool large, const Limits& limits, Loaded* result) {
  DataFile file{.path = path};
  Arrays& arrays = file.arrays;
  const auto add = [&](std::string name, Tensor values, bool column) {
    if (column && result->column_names.insert(name).second) result->columns.push_back(name);
    arrays[std::move(name)] = std::move(values);
  };
  if (is_csv(path)) {
    for (CsvColumn& column : read_csv(FileSource(path), limits)) {
      if (is_refused(column, result)) continue;
      add(std::move(column.name), std::move(column.values), true);
    }
    return file;
  }
  if (is_parquet(path)) {
    const std::set<std::string> none;
    ParquetTable table = read_parquet(path, limits, &none);
    for (ParquetColumn& column : table.columns) add(std::move(column.name), {}, !column.list);
    result->not_read.merge(table.others);
    file.later = true;
    return file;
  }
  if (!large) {
    arrays = load_arrays(path, limits);
    return file;
  }
  arrays = map_arrays(path, limits);
  for (const auto& [name, array] : arrays) result->mapped.insert(name);
  return file;
}

using Group = std::vector<DataFile>;

/// Takes the same array out of several files.
Joined take_parts(Group* files, const std::string& name) {
  Joined joined;
  for (DataFile& file : *files) {
    const Tensor next = joined.parts.emplace_back(std::exchange(file.arrays.at(name), {}));
    joined.paths.push_back(file.path);
    const Tensor& first = joined.parts[0];
    if (joined.parts.size() == 1 || same_but_rows(first, next)) continue;
    throw ShapeError(ErrorParts{
        .what = fmt::format("Array '{}' of {} cannot be joined with that of {}.", name, file.path,
                            joined.paths[0]),
        .node = name,
        .expected = first.dims().empty() ? "rows along a first axis"
                                         : describe(first) + ", but for the first extent",
        .received = describe(next),
        .remedy = "Give both the same extents; or rename one, if it is another array."});
  }
  return joined;
}

void add_to_groups(std::vector<Group>* groups, DataFile file) {
  for (Group& group : *groups) {
    if (same_names(group[0].arrays, file.arrays)) return group.push_back(std::move(file));
  }
  for (const Group& group : *groups) {
    for (const auto& [name, array] : file.arrays) {
      if (group[0].arrays.count(name) == 0) continue;
      throw DataError(ErrorParts{
          .what =
              fmt::format("{} shares some arrays with {}, but not all.", file.path, group[0].path),
          .node = name,
          .expected = "the same arrays in each file, or none that another has",
          .received = fmt::format("{} in {}; {} in {}", list_names(names_of(group[0].arrays)),
                                  group[0].path, list_names(names_of(file.arrays)), file.path),
          .remedy = "Leave arrays out, or rename them."});
    }
  }
  groups->push_back({std::move(file)});
}

/// Reads the wanted columns of a Parquet file.
void read_columns(DataFile* file, const std::set<std::string>& names, const Limits& limits) {
  for (ParquetColumn& column : read_parquet(file->path, limits, &names).columns) {
    const auto array = file->arrays.find(column.name);
    if (array != file->arrays.end() && names.count(column.name) != 0)
      array->second = std::move(column.values);
  }
  for (const auto& [name, array] : file->arrays) {
    if (names.count(name) == 0 || array.dtype() != DType::undefined) continue;
    throw DataError(ErrorParts{.what = file->path + " changed while it was read.",
                               .expected = fmt::format("a column '{}', as before", name),
                               .remedy = "Start again, with files that nobody writes."});
  }
}

}  // namespace

int64_t Joined::rows() const {
  int64_t sum = 0;
  for (const Tensor& part : parts) sum += part.dims().empty() ? 0 : part.dims()[0];
  return sum;
}

std::string Joined::text() const {
  Dims dims = parts[0].dims();
  if (!dims.empty()) dims[0] = rows();
  return fmt::format("{}{}", name_of(parts[0].dtype()), to_string(dims));
}

bool Loaded::is_column(const std::string& name) const { return column_names.count(name) != 0; }

std::string describe(const Tensor& array) {
  return fmt::format("{}{}", name_of(array.dtype()), to_string(array.dims()));
}

Tensor join_rows(const std::vector<Tensor>& parts, const std::string& name) {
  Dims dims = parts[0].dims();
  int64_t rows = 0;
  for (const Tensor& part : parts) {
    if (part.dtype() != parts[0].dtype() || !same_but_rows(part, parts[0])) {
      throw ShapeError(ErrorParts{.what = "Arrays cannot be concatenated.",
                                  .node = name,
                                  .expected = describe(parts[0]) + ", but for the first extent",
                                  .received = describe(part)});
    }
    rows += part.dims()[0];
  }
  dims[0] = rows;
  Tensor result = Tensor::empty(parts[0].dtype(), dims);
  auto* to = static_cast<char*>(result.data());
  for (const Tensor& part : parts) {
    if (part.nbytes() > 0) std::memcpy(to, part.data(), part.nbytes());
    to += part.nbytes();
  }
  return result;
}

Loaded load(const std::vector<std::string>& names, const std::vector<std::string>& classes,
            const Limits& limits) {
  const Paths paths = sorted_out(names, limits);
  std::vector<std::string> all = paths.images;
  all.insert(all.end(), paths.files.begin(), paths.files.end());
  Loaded result{.text = all[0]};
  if (all.size() > 1) result.text += fmt::format(" and {} more", all.size() - 1);
  if (!paths.images.empty()) {
    result.images = std::make_shared<ImageSet>(find_images(paths.images, classes, limits));
    add_to_groups(&result.groups, {.path = paths.images[0], .arrays = arrays_of(*result.images)});
  }
  const bool large = are_large(paths.files, limits);
  for (const std::string& path : paths.files)
    add_to_groups(&result.groups, read_file(path, large, limits, &result));
  for (const Group& group : result.groups) {
    for (const auto& [name, array] : group[0].arrays) result.arrays[name] = {};
  }
  return result;
}

void take(Loaded* data, const std::set<std::string>& names, const Limits& limits) {
  data->arrays.clear();
  for (Group& group : data->groups) {
    const bool any = std::any_of(group[0].arrays.begin(), group[0].arrays.end(),
                                 [&](const auto& array) { return names.count(array.first) != 0; });
    for (DataFile& file : group) {
      if (any && file.later) read_columns(&file, names, limits);
    }
    for (const std::string& name : names_of(group[0].arrays)) {
      if (names.count(name) == 0) continue;
      data->arrays[name] = take_parts(&group, name);
    }
  }
  data->groups.clear();
}

}  // namespace steep::cli
