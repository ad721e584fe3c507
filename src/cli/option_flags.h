// Flags from the table of options (train/option_rows.h).
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "cli/command_line.h"
#include "train/option_rows.h"

namespace steep::cli {

/// Adds the row's flag, which sets `field`: a number within the row's bounds, one of its choices,
/// or words with commas between them. An optional<bool> also gets a flag --no-…, which sets it to
/// false. Returns null if the row has no flag.
template <typename Field>
CLI::Option* add_flag_of(CLI::App& app, const OptionRow& row, Field& field) {
  if (row.flag.empty()) return nullptr;
  const std::string flag(row.flag), help(row.help);
  if constexpr (std::is_same_v<Field, bool>) {
    return app.add_flag(flag, field, help);
  } else if constexpr (std::is_same_v<Field, std::optional<bool>>) {
    return app.add_flag(flag + ",!--no-" + flag.substr(2), field, help);
  } else {
    CLI::Option* option = app.add_option(flag, field, help);
    if constexpr (std::is_same_v<Field, std::vector<std::string>>) {
      return option->delimiter(',');
    } else if constexpr (std::is_same_v<Field, std::vector<double>>) {
      return option->delimiter(',')->transform(real(row.low, row.high));
    } else if constexpr (std::is_same_v<Field, double> ||
                         std::is_same_v<Field, std::optional<double>>) {
      option->transform(real(row.low, row.high));
    } else if constexpr (std::is_same_v<Field, int64_t>) {
      const bool bounded = row.high < static_cast<double>(std::numeric_limits<int64_t>::max());
      option->transform(bounded
                            ? whole(static_cast<int64_t>(row.low), static_cast<int64_t>(row.high))
                            : whole(static_cast<int64_t>(row.low)));
    } else if constexpr (std::is_same_v<Field, uint64_t>) {
      option->transform(whole(static_cast<int64_t>(row.low), std::numeric_limits<int64_t>::max()));
    } else {
      static_assert(std::is_same_v<Field, std::string>);
      if (!row.choices.empty()) {
        option->check(one_of(CLI::detail::split(std::string(row.choices), ',')));
      }
    }
    if constexpr (!std::is_same_v<Field, std::optional<double>>) {
      if (row.says_default) option->capture_default_str();
    }
    return option;
  }
}

}  // namespace steep::cli
