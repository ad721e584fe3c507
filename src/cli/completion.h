// Completions for an unfinished word of the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <vector>

namespace steep::cli {

/// The completions of the last of `words` (the words after the program's name), from the tables of
/// `app`: commands, options, and values of options. Empty if any text is allowed, such as a file
/// name.
std::vector<std::string> completions(const CLI::App& app, std::span<const std::string> words);

/// `steep completion -- WORD…`, as the scripts of `steep completion SHELL` call it: prints
/// completions() and returns true. False for other command lines.
bool complete(const CLI::App& app, std::span<const std::string> command_line);

}  // namespace steep::cli
