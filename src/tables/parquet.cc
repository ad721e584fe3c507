#include "tables/parquet.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "data/files.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "libsteep_parquet.so";

[[noreturn]] void refuse(const std::string& path, const TableFailure& failure) {
  throw DataError(ErrorParts{.what = fmt::format("{} {}.", path, failure.what),
                             .expected = failure.expected,
                             .received = failure.received,
                             .remedy = failure.remedy});
}

[[noreturn]] void refuse_module(const std::string& path, std::string expected,
                                const std::string& why, const std::string& or_else = "") {
  throw DataError(ErrorParts{
      .what = path + " is Parquet, which this copy of the program cannot read.",
      .expected = std::move(expected),
      .received = why,
      .remedy = or_else +
                "Convert it: python -c \"import numpy, pyarrow.parquet as p; t = "
                "p.read_table('FILE.parquet'); numpy.savez('FILE.npz', **{c: t[c].to_numpy() for c "
                "in t.column_names})\""});
}

/// The module beside the program, or in the folder of private libraries of an installation.
OpenTable load_module(const std::string& path) {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& place : {folder, folder / ".." / STEEP_PRIVATE_LIBRARIES}) {
    const fs::path file = place / kModule;
    if (!fs::exists(file, error)) continue;
    void* module = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays
    void* function = module == nullptr ? nullptr : ::dlsym(module, kOpenTable);
    if (function != nullptr) return reinterpret_cast<OpenTable>(function);
    refuse_module(path, fmt::format("the libraries that {} was built with", file.string()),
                  ::dlerror(), "Install that release of Apache Arrow where it was. Or: ");
  }
  refuse_module(path,
                "a program that was built where Apache Arrow is (pip install pyarrow; cmake "
                "-DSTEEP_PARQUET=ON)",
                fmt::format("no {} beside the program", kModule));
}

class Reader {
 public:
  Reader(TableModule& table, const std::string& path, const Limits& limits)
      : table_(table), path_(path), limits_(limits) {}

  ParquetTable read(const std::set<std::string>* wanted) {
    check();
    ParquetTable result;
    for (size_t c = 0; c < table_.columns().size(); ++c) {
      const TableColumn& column = table_.columns()[c];
      if (column.dtype == DType::undefined) {
        result.others[column.name] = column.type;
      } else if (wanted == nullptr || wanted->count(column.name) != 0) {
        result.columns.push_back(read_column(static_cast<int>(c)));
      } else {
        result.columns.push_back({.name = column.name, .values = Tensor(), .list = column.list});
      }
    }
    return result;
  }

 private:
  void check() const {
    const std::vector<TableColumn>& columns = table_.columns();
    if (table_.rows() <= 0) refuse(path_, {.what = "has no rows"});
    if (columns.size() > limits_.max_arrays) {
      refuse(path_, {.what = "has too many columns",
                     .expected = fmt::format("at most {}", limits_.max_arrays),
                     .received = std::to_string(columns.size())});
    }
    std::set<std::string> names;
    bool any = false;
    for (const TableColumn& column : columns) {
      any = any || column.dtype != DType::undefined;
      if (!names.insert(column.name).second) {
        refuse(path_, {.what = "has two columns of one name", .received = column.name});
      }
    }
    if (!any) {
      refuse(path_, {.what = "has no column that is read",
                     .expected = "numbers, bools, or lists of them of one length",
                     .received = columns.empty() ? "no columns" : columns[0].type});
    }
  }

  ParquetColumn read_column(int c) {
    const TableColumn& about = table_.columns()[static_cast<size_t>(c)];
    ParquetColumn column{.name = about.name, .values = Tensor(), .list = about.list};
    int64_t rows = 0, width = about.list ? -1 : 1;
    for (int group = 0; group < table_.groups(); ++group) {
      poll();
      TableNumbers numbers;
      const TableFailure failure = table_.read(group, c, &numbers);
      if (!failure.what.empty()) refuse(path_, failure);
      if (numbers.rows == 0) continue;
      if (width < 0) width = numbers.width;
      if (rows == 0) column.values = make(about, width);
      if (numbers.width != width) {
        refuse(path_,
               {.what = fmt::format("has lists of different lengths in column '{}', row {}",
                                    about.name, rows + 1),
                .expected = fmt::format("{}, as in the rows before", counted(width, "number")),
                .received = std::to_string(numbers.width)});
      }
      if (numbers.rows > table_.rows() - rows) {
        rows += numbers.rows;
        break;
      }
      const size_t row = size_of(about.dtype) * static_cast<size_t>(width);
      if (row != 0) {
        std::memcpy(static_cast<char*>(column.values.data()) + static_cast<size_t>(rows) * row,
                    numbers.data, static_cast<size_t>(numbers.rows) * row);
      }
      rows += numbers.rows;
    }
    if (rows != table_.rows()) {
      refuse(path_, {.what = fmt::format("has a wrong number of rows in column '{}'", about.name),
                     .expected = std::to_string(table_.rows()),
                     .received = std::to_string(rows),
                     .remedy = "Write the file again."});
    }
    return column;
  }

  /// A tensor for all rows of a column.
  Tensor make(const TableColumn& column, int64_t width) {
    const uint64_t row = size_of(column.dtype) * static_cast<uint64_t>(width);
    const auto rows = static_cast<uint64_t>(table_.rows());
    const uint64_t left = limits_.max_bytes - std::min<uint64_t>(used_, limits_.max_bytes);
    if (row != 0 && rows > left / row) {
      refuse(path_, {.what = "exceeds the memory limit of this process",
                     .expected = fmt::format("at most {} bytes of numbers", limits_.max_bytes),
                     .received =
                         fmt::format("{} of {} in column '{}', and {} before", counted(rows, "row"),
                                     counted(row, "byte"), column.name, bytes_text(used_)),
                     .remedy = "Raise --max-bytes (Limits::max_bytes), or leave out columns."});
    }
    used_ += rows * row;
    Dims dims{table_.rows()};
    if (column.list) dims.push_back(width);
    return Tensor::empty(column.dtype, std::move(dims));
  }

  TableModule& table_;
  const std::string& path_;
  const Limits& limits_;
  uint64_t used_ = 0;  // bytes of the columns so far
};

}  // namespace

ParquetTable read_table(TableModule& table, const std::string& path, const Limits& limits,
                        const std::set<std::string>* wanted) {
  return Reader(table, path, limits).read(wanted);
}

ParquetTable read_parquet(const std::string& path, const Limits& limits,
                          const std::set<std::string>* wanted) {
  const Budget budget(limits);
  FileSource{path};  // throws if it is no file that can be read
  const OpenTable open = load_module(path);
  TableFailure failure;
  const std::unique_ptr<TableModule> table(
      open(path.c_str(), nullptr, 0, limits.max_bytes, &failure));
  if (table == nullptr) refuse(path, failure);
  return read_table(*table, path, limits, wanted);
}

bool is_parquet(const std::string& path) {
  std::string end = fs::path(path).extension().string();
  std::transform(end.begin(), end.end(), end.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return end == ".parquet" || end == ".pq";
}

}  // namespace steep
