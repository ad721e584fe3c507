// Validation of the words of a command line, and errors for unknown ones.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

namespace steep::cli {

/// The largest count. Sums and products of a few such counts fit into int64.
constexpr int64_t kMost = 1'000'000'000;

/// For CLI::Option::transform: a whole decimal number in [low, high].
CLI::Validator whole(int64_t low, int64_t high = kMost);
/// The same for finite numbers.
CLI::Validator real(double low, double high = std::numeric_limits<double>::max());

/// For CLI::Option::check: accepts one of these words. The error for any other word names the
/// nearest.
CLI::Validator one_of(std::vector<std::string> words);

/// --threads, whose value use_threads() applies; 0 does not change the number of threads.
void add_threads_option(CLI::App& app, int64_t& threads);
void use_threads(int64_t threads);

/// Makes every option of `app` refuse an empty word: `--out "$UNSET"` must not mean "no --out".
void refuse_empty_words(CLI::App& app);

/// Throws CLI::RequiresError, which names `requirement`, if one of `options` was given although the
/// option that it depends on was not (`given` is false), so that it would have no effect. Options
/// that `app` does not have count as not given.
void only_with(const CLI::App& app, bool given, const std::string& requirement,
               std::initializer_list<const char*> options);

/// For CLI::App::failure_message: names the known command or option that is nearest to an unknown
/// one.
std::string explain(const CLI::App* app, const CLI::Error& error);

}  // namespace steep::cli
