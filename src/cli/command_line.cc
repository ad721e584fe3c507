#include "cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/threads.h"
#include "train/name_suggestions.h"

namespace steep::cli {
namespace {

/// Parses the whole word as one number. CLI11's own conversion reads "010" as 8, "-1" as an
/// unsigned number and "" as 0; so the validator rewrites the number for it.
template <typename T>
bool parse(std::string_view word, T* value) {
  if (word.size() > 1 && word[0] == '+' && word[1] != '-') word.remove_prefix(1);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *value);
  return error == std::errc{} && end == word.data() + word.size();
}

/// `expected` describes all accepted values, `hint` is the text in --help.
template <typename T>
CLI::Validator number(T low, T high, const std::string& expected, const std::string& hint) {
  return {[=](std::string& word) {
            T value = 0;
            if (!parse(word, &value) || !(value >= low && value <= high)) {
              return fmt::format("expected {}, received '{}'", expected, word);
            }
            word = fmt::format("{}", value);
            return std::string();
          },
          hint};
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (word.empty()) return fmt::format("a command is needed: {}", fmt::join(names, ", "));
  const std::string near = closest_name(word, names);
  return fmt::format("there is no command '{}'{}", word,
                     near.empty() ? fmt::format("; there are {}", fmt::join(names, ", "))
                                  : fmt::format(": did you mean '{}'?", near));
}

std::string unknown_option(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  const std::string option = word.substr(0, word.find('='));
  const std::string bare = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  const std::string near = closest_name(bare, names);
  return fmt::format("there is no option '{}'{}", option,
                     near.empty() ? "" : fmt::format(": did you mean '--{}'?", near));
}

/// The first unknown word of the command line, or "".
std::string unknown_word(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  const CLI::App& command = commands.empty() ? app : *commands[0];
  if (command.get_allow_extras()) return "";  // launch hands them on
  const std::vector<std::string> words = command.remaining();
  for (const std::string& word : words) {
    if (word.size() > 1 && word[0] == '-') return unknown_option(command, word);
  }
  return commands.empty() ? unknown_command(app, words.empty() ? "" : words[0]) : "";
}

}  // namespace

CLI::Validator whole(int64_t low, int64_t high) {
  const bool any = low == std::numeric_limits<int64_t>::min();
  const std::string hint = any             ? ""
                           : high >= kMost ? fmt::format("{} or more", low)
                                           : fmt::format("{} to {}", low, high);
  return number(low, high, fmt::format("a whole number from {} to {}", low, high), hint);
}

CLI::Validator real(double low, double high) {
  if (low == std::numeric_limits<double>::lowest()) {
    return number(low, high, "a finite number", "");
  }
  const std::string range = high == std::numeric_limits<double>::max()
                                ? fmt::format("{} or more", low)
                                : fmt::format("{} to {}", low, high);
  return number(low, high, "a finite number, " + range, range);
}

CLI::Validator one_of(std::vector<std::string> words) {
  const std::string list = fmt::format("{{{}}}", fmt::join(words, ","));
  return {[words = std::move(words), list](const std::string& word) {
            if (std::find(words.begin(), words.end(), word) != words.end()) return std::string();
            const std::string near = closest_name(word, words);
            return fmt::format("{} not in {}{}", word, list,
                               near.empty() ? "" : fmt::format(": did you mean '{}'?", near));
          },
          list};
}

void add_threads_option(CLI::App& app, int64_t& threads) {
  app.add_option("--threads", threads,
                 "Threads that compute (default: the cores there are, or OMP_NUM_THREADS)")
      ->transform(whole(1, kMostThreads));
}

void use_threads(int64_t threads) {
  if (threads > 0) omp_set_num_threads(static_cast<int>(threads));
}

void refuse_empty_words(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag has no value
    option->check([](const std::string& word) {
      return word.empty() ? std::string("expected a word, received an empty one") : std::string();
    });
  }
}

void only_with(const CLI::App& app, bool given, const std::string& requirement,
               std::initializer_list<const char*> options) {
  for (const char* option : options) {
    const CLI::Option* match = app.get_option_no_throw(option);
    if (!given && match != nullptr && match->count() > 0) {
      throw CLI::RequiresError(option, requirement);
    }
  }
}

std::string explain(const CLI::App* app, const CLI::Error& error) {
  const std::string unknown = unknown_word(*app);
  return fmt::format("steep: {}\nRun with --help for more information.\n",
                     unknown.empty() ? error.what() : unknown);
}

}  // namespace steep::cli
