// What a shell offers for a word of the command line that is not finished.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <vector>

namespace steep::cli {

/// What the last of `words`, those behind the program's name, may become, from the tables of `app`:
/// commands, options, and the words that an option takes. Empty if any text is allowed, such as a
/// file name.
std::vector<std::string> completions(const CLI::App& app, std::span<const std::string> words);

/// `steep completion -- WORD…`, as the scripts of `steep completion SHELL` call it: prints
/// completions() and returns true. False for other command lines.
bool complete(const CLI::App& app, std::span<const std::string> command_line);

}  // namespace steep::cli
