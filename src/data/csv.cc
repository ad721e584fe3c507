#include "data/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/shell_word.h"
#include "steep/error.h"

namespace steep {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Shortens a text, which may be long and have any bytes, for a message.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 40;
  std::string part(text.substr(0, kMost));
  for (char& c : part) c = static_cast<unsigned char>(c) < ' ' ? '?' : c;
  return "'" + part + (text.size() > kMost ? "…'" : "'");
}

/// "5" for "+5", which spreadsheets write and std::from_chars does not take.
std::string_view without_plus(std::string_view text) {
  const bool plus = text.size() > 1 && text[0] == '+' && text[1] != '-' && text[1] != '+';
  return text.substr(plus ? 1 : 0);
}

bool is_number(std::string_view text) {
  text = without_plus(text);
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return stop == text.data() + text.size() && !text.empty() && error != std::errc::invalid_argument;
}

/// `a"b` for `a""b`, as a quoted cell has it.
std::string without_pairs(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    result += text[i];
    if (text.substr(i, 2) == "\"\"") ++i;
  }
  return result;
}

/// The value of "true" and "false", in any case.
std::optional<int64_t> bool_of(std::string_view text) {
  std::string word(text.substr(0, std::size("false")));
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (word == "true") return 1;
  if (word == "false") return 0;
  return {};
}

class Table {
 public:
  Table(const ByteSource& source, const Limits& limits) : source_(source), limits_(limits) {}

  void read(std::string_view text) {
    constexpr std::string_view kMark = "\xef\xbb\xbf";  // byte order mark of UTF-8
    if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
    if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
      refuse("is written in UTF-16", "UTF-8", "",
             fmt::format("Convert it: iconv -f utf-16 -t utf-8 {} > new.csv", file()));
    }
    const size_t end = text.find('\r');
    if (text.find('\n') == text.npos && end != text.npos && end + 1 < text.size()) {
      refuse("ends its rows with carriage returns alone", "line feeds at the ends of rows", "",
             fmt::format("Convert it: tr '\\r' '\\n' < {} > new.csv", file()));
    }
    behind_ = text;
    while (!behind_.empty()) {
      std::string_view line = take_line();
      ++line_;
      if (columns_.empty()) {
        read_names(line);
      } else if (!trimmed(line).empty() ||
                 (columns_.size() == 1 && behind_.find_first_not_of("\r\n") != behind_.npos)) {
        read_row(line);
      }
      if (line_ % 4096 == 0) poll();
    }
    if (rows_ == 0) refuse("has no rows", "a first row of names, and rows of numbers", "", "");
  }

  std::vector<CsvColumn> columns() {
    std::vector<CsvColumn> result;
    for (Column& c : columns_) {
      if (c.refused) {
        result.push_back({.name = std::move(c.name), .refused = std::move(c.refused)});
        continue;
      }
      const bool whole = c.numbers.empty();
      Tensor values =
          whole ? Tensor::empty(DType::i64, {rows_}) : Tensor::empty(DType::f64, {rows_});
      if (whole) {
        std::copy(c.integers.begin(), c.integers.end(), values.data<int64_t>());
      } else {
        std::copy(c.numbers.begin(), c.numbers.end(), values.data<double>());
      }
      result.push_back({.name = std::move(c.name), .values = std::move(values)});
      c = {};
    }
    return result;
  }

 private:
  /// A column's values, in one of two vectors; the other is empty. Both are empty if `refused`.
  struct Column {
    std::string name{};
    std::vector<int64_t> integers{};
    std::vector<double> numbers{};
    bool words = false;  ///< the integers are true and false
    std::optional<ErrorParts> refused{};
  };

  ErrorParts error_of(const std::string& why, const std::string& expected,
                      const std::string& received, const std::string& remedy) const {
    return {.what = fmt::format("{} {}.", source_.name(), why),
            .expected = expected,
            .received = received,
            .remedy = remedy};
  }

  [[noreturn]] void refuse(const std::string& why, const std::string& expected,
                           const std::string& received, const std::string& remedy) const {
    throw DataError(error_of(why, expected, received, remedy));
  }

  /// Removes the next line from what is behind, and returns it.
  std::string_view take_line() {
    const size_t end = std::min(behind_.find('\n'), behind_.size());
    std::string_view line = behind_.substr(0, end);
    behind_.remove_prefix(std::min(end + 1, behind_.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  /// Where the quoted cell ends that begins `rest`, which becomes longer by the lines that are part
  /// of the cell. A quote in the cell is written twice.
  size_t end_of_quoted(std::string_view* rest) {
    const char* stop = behind_.data() + behind_.size();
    const char* at = rest->data() + 1;
    for (;; at += 2) {
      at = std::find(at, stop, '"');
      if (at == stop) {
        refuse(fmt::format("has a quote in row {} that does not end", line_),
               "quotes in pairs: one within a cell is written twice", shown(*rest), "");
      }
      if (at + 1 == stop || at[1] != '"') break;
    }
    const char* line_end = rest->data() + rest->size();
    if (at >= line_end) {
      behind_ = {at + 1, static_cast<size_t>(stop - at - 1)};
      const std::string_view tail = take_line();
      *rest = {rest->data(), static_cast<size_t>(tail.data() + tail.size() - rest->data())};
    }
    return static_cast<size_t>(at - rest->data());
  }

  /// Removes the next cell from the line and returns it. `more`: another cell follows.
  std::string_view cell(std::string_view* line, bool* more) {
    std::string_view rest = trimmed(*line);
    if (!rest.starts_with('"')) {
      const size_t end = std::min(line->find(','), line->size());
      const std::string_view text = trimmed(line->substr(0, end));
      *more = end < line->size();
      line->remove_prefix(std::min(end + 1, line->size()));
      return text;
    }
    const size_t end = end_of_quoted(&rest);
    const std::string_view text = rest.substr(1, end - 1);
    rest = trimmed(rest.substr(end + 1));
    *more = rest.starts_with(',');
    if (!rest.empty() && !*more) {
      refuse(fmt::format("has text behind a quote in row {}", line_), "a comma, or the row's end",
             shown(rest), "");
    }
    *line = *more ? rest.substr(1) : std::string_view();
    return text;
  }

  void read_names(std::string_view line) {
    const std::string_view whole = line;
    for (bool more = true; more;) {
      const std::string_view name = cell(&line, &more);
      if (columns_.size() == limits_.max_arrays) {
        refuse("has too many columns", fmt::format("at most {}", limits_.max_arrays), "more", "");
      }
      columns_.push_back({.name = without_pairs(name)});
    }
    const bool tabs = whole.find('\t') != whole.npos;
    if (columns_.size() == 1 && (tabs || whole.find(';') != whole.npos)) {
      refuse(fmt::format("is separated by {}", tabs ? "tabs" : "semicolons"),
             "cells with commas between them", shown(whole),
             tabs ? fmt::format("Separate cells with commas: tr '\\t' ',' < {} > new.csv", file())
                  : "Separate cells with commas, and write decimal points, not commas.");
    }
    check_for_numbers();
    std::set<std::string_view> names;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string& name = columns_[i].name;
      if (name.empty() && i == 0 && columns_.size() > 1) {
        columns_[i].refused = error_of("has a first column without a name", "a name", "", "");
      } else if (name.empty() || !names.insert(name).second) {
        refuse(fmt::format("has {} in row {}, column {}", name.empty() ? "no name" : "a name twice",
                           line_, i + 1),
               "a first row with a name for each column", shown(name), "");
      }
    }
  }

  /// Refuses names that are numbers, because a table without names would lose its first row. Only
  /// 0, 1, 2, … beside a name that is none are accepted: pandas writes them.
  void check_for_numbers() const {
    const auto is_text = [](const Column& c) { return !is_number(c.name); };
    const bool texts = std::any_of(columns_.begin(), columns_.end(), is_text);
    int64_t next = 0;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (is_text(columns_[i])) continue;
      if (texts && columns_[i].name == std::to_string(next)) {
        ++next;
        continue;
      }
      constexpr size_t kShown = 8;
      std::string names = "c1";
      for (size_t k = 2; k <= std::min(columns_.size(), kShown); ++k)
        names += fmt::format(",c{}", k);
      if (columns_.size() > kShown) names += ",…";
      refuse(fmt::format("has a number for a name in row {}, column {}", line_, i + 1),
             "a first row with a name for each column", shown(columns_[i].name),
             fmt::format("If this row is data, write names above it: sed -i '1i {}' {}. If it has "
                         "names, begin them with a letter.",
                         names, file()));
    }
  }

  void read_row(std::string_view line) {
    size_t at = 0;
    for (bool more = true; more; ++at) {
      const std::string_view text = cell(&line, &more);
      const bool many = at == columns_.size();
      if (many || (!more && at + 1 < columns_.size())) {
        refuse(fmt::format("has {} cells in row {}", many ? "too many" : "too few", line_),
               fmt::format("{}, as many as names", counted(columns_.size(), "cell")),
               fmt::format("{}{}", many ? "more than " : "", many ? at : at + 1), "");
      }
      add(&columns_[at], text);
    }
    ++rows_;
    constexpr uint64_t kCell = 8;
    if (static_cast<uint64_t>(rows_) > limits_.max_bytes / kCell / columns_.size()) {
      refuse("exceeds the memory limit of this process",
             fmt::format("at most {} bytes of numbers", limits_.max_bytes), "more",
             "Raise --max-bytes (Limits::max_bytes).");
    }
  }

  void add(Column* column, std::string_view text) const {
    if (column->refused) return;
    const char* end = text.data() + text.size();
    const std::optional<int64_t> word = bool_of(text);
    if (rows_ == 0) column->words = word.has_value();
    if (column->words != word.has_value()) return refuse_cell(column, text);
    if (word) return column->integers.push_back(*word);
    int64_t whole = 0;
    const char* begin = without_plus(text).data();
    if (column->numbers.empty()) {
      const auto [stop, error] = std::from_chars(begin, end, whole);
      if (error == std::errc{} && stop == end) return column->integers.push_back(whole);
    }
    double number = 0;
    const auto [stop, error] = std::from_chars(begin, end, number);
    if (error != std::errc{} || stop != end) return refuse_cell(column, text);
    if (column->numbers.empty()) {
      column->numbers.assign(column->integers.begin(), column->integers.end());
      column->integers = {};
    }
    column->numbers.push_back(number);
  }

  /// Others may not need this column.
  void refuse_cell(Column* column, std::string_view text) const {
    const bool mixed = column->words || bool_of(text);
    column->refused = error_of(
        fmt::format("has {} in row {}, column '{}'",
                    text.empty() ? "an empty cell" : "a cell that is no number", line_,
                    column->name),
        mixed ? "all true or false, or all numbers" : "numbers, as in 1 or -2.5e-3", shown(text),
        text.find(';') != text.npos
            ? "Separate cells with commas."
            : "Leave out rows with missing values, and give texts numbers; or leave the column "
              "out: --map INPUT=COLUMN,COLUMN names those to read.");
    column->integers = {};
    column->numbers = {};
  }

  /// For a command that a message gives.
  std::string file() const { return shell_word(source_.name()); }

  const ByteSource& source_;
  std::string_view behind_{};  // the lines behind the present one
  const Limits& limits_;
  std::vector<Column> columns_;
  int64_t rows_ = 0;
  int64_t line_ = 0;
};

}  // namespace

std::vector<CsvColumn> read_csv(const ByteSource& source, const Limits& limits) {
  const Budget budget(limits);
  if (source.size() > limits.max_bytes) {
    throw DataError(ErrorParts{.what = source.name() + " exceeds the memory limit of this process.",
                               .expected = fmt::format("at most {} bytes", limits.max_bytes),
                               .received = counted(source.size(), "byte"),
                               .remedy = "Raise --max-bytes (Limits::max_bytes)."});
  }
  std::string text(static_cast<size_t>(source.size()), '\0');
  source.read(0, text.data(), text.size());
  Table table(source, limits);
  table.read(text);
  return table.columns();
}

bool is_csv(const std::string& path) {
  std::string end = path.size() < 4 ? "" : path.substr(path.size() - 4);
  std::transform(end.begin(), end.end(), end.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return end == ".csv";
}

}  // namespace steep
