// The module that reads Parquet, by Apache Arrow: a shared library without the engine.
#include <arrow/api.h>
#include <arrow/io/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/properties.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include "tables/module.h"

namespace steep {
namespace {

DType dtype_of(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::BOOL: return DType::boolean;
    case arrow::Type::INT8: return DType::i8;
    case arrow::Type::INT16: return DType::i16;
    case arrow::Type::INT32: return DType::i32;
    case arrow::Type::INT64: return DType::i64;
    case arrow::Type::UINT8: return DType::u8;
    case arrow::Type::UINT16: return DType::u16;
    case arrow::Type::UINT32: return DType::u32;
    case arrow::Type::UINT64: return DType::u64;
    case arrow::Type::HALF_FLOAT: return DType::f16;
    case arrow::Type::FLOAT: return DType::f32;
    case arrow::Type::DOUBLE: return DType::f64;
    default: return DType::undefined;
  }
}

bool holds_lists(arrow::Type::type id) {
  return id == arrow::Type::FIXED_SIZE_LIST || id == arrow::Type::LIST ||
         id == arrow::Type::LARGE_LIST;
}

TableColumn column_of(const arrow::Field& field) {
  TableColumn column{.name = field.name(), .type = field.type()->ToString()};
  column.list = holds_lists(field.type()->id());
  column.dtype = dtype_of(column.list ? *field.type()->field(0)->type() : *field.type());
  return column;
}

/// The first null of an array; -1 if it has none.
int64_t first_null(const arrow::Array& array) {
  if (array.null_count() == 0) return -1;
  for (int64_t i = 0; i < array.length(); ++i) {
    if (array.IsNull(i)) return i;
  }
  return -1;
}

/// Where the values of a row begin, and how many there are.
struct Range {
  int64_t begin;
  int64_t count;
};

Range range_of(const arrow::Array& array, int64_t row) {
  switch (array.type_id()) {
    case arrow::Type::FIXED_SIZE_LIST: {
      const auto& lists = static_cast<const arrow::FixedSizeListArray&>(array);
      return {lists.value_offset(row), lists.value_length(row)};
    }
    case arrow::Type::LIST: {
      const auto& lists = static_cast<const arrow::ListArray&>(array);
      return {lists.value_offset(row), lists.value_length(row)};
    }
    default: {
      const auto& lists = static_cast<const arrow::LargeListArray&>(array);
      return {lists.value_offset(row), lists.value_length(row)};
    }
  }
}

std::shared_ptr<arrow::Array> values_of(const arrow::Array& array) {
  switch (array.type_id()) {
    case arrow::Type::FIXED_SIZE_LIST:
      return static_cast<const arrow::FixedSizeListArray&>(array).values();
    case arrow::Type::LIST: return static_cast<const arrow::ListArray&>(array).values();
    default: return static_cast<const arrow::LargeListArray&>(array).values();
  }
}

/// A message of Arrow in one line.
std::string line_of(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

class ParquetTable : public TableModule {
 public:
  explicit ParquetTable(uint64_t max_bytes)
      : pool_(arrow::default_memory_pool(),
              static_cast<int64_t>(std::min<uint64_t>(max_bytes, INT64_MAX))) {}

  arrow::Status open(std::shared_ptr<arrow::io::RandomAccessFile> file) {
    parquet::ReaderProperties properties(&pool_);
    properties.set_page_checksum_verification(true);  // of pages that have one
    properties.set_thrift_string_size_limit(kMostHeader);
    properties.set_thrift_container_size_limit(kMostHeader);
    parquet::arrow::FileReaderBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Open(std::move(file), properties));
    ARROW_RETURN_NOT_OK(builder.memory_pool(&pool_)->Build(&reader_));
    std::shared_ptr<arrow::Schema> schema;
    ARROW_RETURN_NOT_OK(reader_->GetSchema(&schema));
    for (const auto& field : schema->fields()) columns_.push_back(column_of(*field));
    const auto metadata = reader_->parquet_reader()->metadata();
    rows_ = metadata->num_rows();
    int64_t before = 0;
    for (int g = 0; g < metadata->num_row_groups(); ++g) {
      firsts_.push_back(before);
      before += metadata->RowGroup(g)->num_rows();
    }
    return arrow::Status::OK();
  }

  const std::vector<TableColumn>& columns() const override { return columns_; }
  int64_t rows() const override { return rows_; }
  int groups() const override { return reader_->num_row_groups(); }

  TableFailure read(int group, int column, TableNumbers* numbers) override {
    const TableColumn& about = columns_[static_cast<size_t>(column)];
    try {
      std::shared_ptr<arrow::ChunkedArray> chunks;
      const arrow::Status status = reader_->RowGroup(group)->Column(column)->Read(&chunks);
      if (!status.ok()) return failure(status.ToString(), about);
      for (const auto& chunk : chunks->chunks()) {
        const arrow::Status valid = chunk->ValidateFull();
        if (!valid.ok()) return failure(valid.ToString(), about);
      }
      return take(*chunks, about, firsts_[static_cast<size_t>(group)], numbers);
    } catch (const std::exception& error) {
      return failure(error.what(), about);
    }
  }

 private:
  static constexpr int32_t kMostHeader = 64 << 20;

  static TableFailure failure(const std::string& why, const TableColumn& column) {
    return {.what = "has a column that cannot be read: '" + column.name + "'",
            .expected = "a complete Parquet file",
            .received = line_of(why),
            .remedy = "Write the file again, or raise --max-bytes if it ran out of memory."};
  }

  /// Rows count from 1, as in other tables.
  static TableFailure null_at(int64_t row, const TableColumn& column) {
    return {
        .what = "has a null in row " + std::to_string(row + 1) + ", column '" + column.name + "'",
        .expected = "a number in each row",
        .received = "null",
        .remedy = "Leave out rows with missing values, or fill them."};
  }

  /// Copies the chunks of a group, whose first row is `row`, to bytes_.
  TableFailure take(const arrow::ChunkedArray& chunks, const TableColumn& column, int64_t row,
                    TableNumbers* numbers) {
    *numbers = {.rows = chunks.length(), .width = column.list ? -1 : 1};
    bytes_.clear();
    for (const auto& chunk : chunks.chunks()) {
      if (const int64_t at = first_null(*chunk); at >= 0) return null_at(row + at, column);
      TableFailure failed;
      if (column.list) {
        failed = take_lists(*chunk, column, row, numbers);
      } else {
        append(*chunk, 0, chunk->length());
      }
      if (!failed.what.empty()) return failed;
      row += chunk->length();
    }
    numbers->data = bytes_.data();
    return {};
  }

  TableFailure take_lists(const arrow::Array& lists, const TableColumn& column, int64_t row,
                          TableNumbers* numbers) {
    const std::shared_ptr<arrow::Array> values = values_of(lists);
    for (int64_t i = 0; i < lists.length(); ++i) {
      const Range range = range_of(lists, i);
      if (numbers->width < 0) numbers->width = range.count;
      if (range.count != numbers->width) {
        return {.what = "has lists of different lengths in column '" + column.name + "', row " +
                        std::to_string(row + i + 1),
                .expected = std::to_string(numbers->width) + " numbers, as in the rows before",
                .received = std::to_string(range.count)};
      }
      for (int64_t k = 0; values->null_count() > 0 && k < range.count; ++k) {
        if (values->IsNull(range.begin + k)) return null_at(row + i, column);
      }
      append(*values, range.begin, range.count);
    }
    return {};
  }

  /// Adds numbers to bytes_; a bool becomes a byte.
  void append(const arrow::Array& values, int64_t begin, int64_t count) {
    if (count == 0) return;
    if (values.type_id() == arrow::Type::BOOL) {
      const auto& bools = static_cast<const arrow::BooleanArray&>(values);
      for (int64_t i = begin; i < begin + count; ++i)
        bytes_.push_back(static_cast<char>(bools.Value(i)));
      return;
    }
    const auto width = static_cast<size_t>(values.type()->byte_width());
    const auto* from = reinterpret_cast<const char*>(values.data()->buffers[1]->data()) +
                       static_cast<size_t>(values.offset() + begin) * width;
    bytes_.insert(bytes_.end(), from, from + static_cast<size_t>(count) * width);
  }

  arrow::CappedMemoryPool pool_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<TableColumn> columns_;
  std::vector<int64_t> firsts_;  // row of each group
  int64_t rows_ = 0;
  std::vector<char> bytes_;
};

arrow::Result<std::shared_ptr<arrow::io::RandomAccessFile>> file_of(const char* path,
                                                                    const void* bytes,
                                                                    uint64_t size) {
  if (path != nullptr) {
    ARROW_ASSIGN_OR_RAISE(auto file, arrow::io::ReadableFile::Open(path));
    return file;
  }
  return std::make_shared<arrow::io::BufferReader>(std::make_shared<arrow::Buffer>(
      static_cast<const uint8_t*>(bytes), static_cast<int64_t>(size)));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) TableModule* steep_open_parquet(
    const char* path, const void* bytes, uint64_t size, uint64_t max_bytes, TableFailure* failure) {
  arrow::Status status;
  try {
    auto table = std::make_unique<ParquetTable>(max_bytes);
    auto file = file_of(path, bytes, size);
    status = file.ok() ? table->open(*file) : file.status();
    if (status.ok()) return table.release();
  } catch (const std::exception& error) {
    status = arrow::Status::Invalid(error.what());
  }
  *failure = {.what = "cannot be read as Parquet",
              .expected = "a complete Parquet file",
              .received = line_of(status.message()),
              .remedy = "Write the file again."};
  return nullptr;
}

}  // namespace steep
