// What the words of a command line may be, and what is said about those that nobody knows.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

namespace steep::cli {

/// Of counts. Sums and products of a few such counts are far from the end of int64.
constexpr int64_t kMost = 1'000'000'000;

/// For CLI::Option::transform: a whole decimal number in [low, high].
CLI::Validator whole(int64_t low, int64_t high = kMost);
/// The same for finite numbers.
CLI::Validator real(double low, double high = std::numeric_limits<double>::max());

/// For CLI::Option::check: one of these words; what is none is told the nearest.
CLI::Validator one_of(std::vector<std::string> words);

/// --threads, of which use_threads() makes use; 0 leaves them as they are.
void add_threads_option(CLI::App& app, int64_t& threads);
void use_threads(int64_t threads);

/// Every option of `app` refuses an empty word: `--out "$UNSET"` is no way to say nothing.
void refuse_empty_words(CLI::App& app);

/// Throws CLI::RequiresError, naming `needed`, if one of `options` was given although what it
/// belongs to was not: it would change nothing. Options that `app` does not have were not given.
void only_with(const CLI::App& app, bool given, const std::string& needed,
               std::initializer_list<const char*> options);

/// For CLI::App::failure_message: names the command or option that is nearest to an unknown one.
std::string explain(const CLI::App* app, const CLI::Error& error);

}  // namespace steep::cli
