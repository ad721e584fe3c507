// steep completion: scripts for shells, which call the program for completions.
#include "cli/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "train/loss.h"
#include "train/optimizer.h"

namespace steep::cli {
namespace {

constexpr const char* kBash = R"(_steep() {
  local IFS=$'\n'
  COMPREPLY=($("${COMP_WORDS[0]}" completion -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o bashdefault -o default -F _steep steep
)";

constexpr const char* kZsh = R"(#compdef steep
_steep() {
  local -a found
  found=("${(@f)$("${words[1]}" completion -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
if [[ "${funcstack[1]}" == _steep ]]; then _steep "$@"; else compdef _steep steep; fi
)";

constexpr const char* kFish = R"(function __steep_words
  set -l before (commandline -opc)
  set -l now (commandline -ct)
  $before[1] completion -- $before[2..-1] "$now" 2>/dev/null
end
complete -c steep -a '(__steep_words)'
)";

bool takes_word(const CLI::Option& option) { return option.get_items_expected_max() != 0; }

/// The words that the option accepts. one_of() puts them in its description, as "{a,b}". Losses and
/// optimizers have no validator, because they are checked after --ops is read.
std::vector<std::string> choices_of(const CLI::Option& option) {
  if (option.check_lname("loss")) return loss_names();
  if (option.check_lname("optimizer")) return optimizer_kinds();
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

/// The names that begin with `word`, each with the prefix `before`.
std::vector<std::string> matching(std::vector<std::string> names, const std::string& word,
                                  const std::string& before = "") {
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(word); });
  for (std::string& name : names) name.insert(0, before);
  return names;
}

/// The values of an option that complete `word`, or its last part after a comma.
std::vector<std::string> values(const CLI::Option& option, const std::string& word,
                                const std::string& before = "") {
  const size_t comma = option.get_delimiter() == ',' ? word.rfind(',') : std::string::npos;
  const size_t at = comma == std::string::npos ? 0 : comma + 1;
  return matching(choices_of(option), word.substr(at), before + word.substr(0, at));
}

std::vector<const CLI::App*> all_commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : all_commands(app)) names.push_back(command->get_name());
  return names;
}

const CLI::App* command_of(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : all_commands(app)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// The option that `word` names, if it takes a value; else null.
const CLI::Option* asked_by(const CLI::App& command, const std::string& word) {
  const CLI::Option* option = word.starts_with("-") ? command.get_option_no_throw(word) : nullptr;
  return option != nullptr && takes_word(*option) ? option : nullptr;
}

}  // namespace

std::vector<std::string> completions(const CLI::App& app, std::span<const std::string> arguments) {
  std::vector<std::string> words(arguments.begin(), arguments.end());
  if (words.empty()) words.emplace_back();
  // bash passes --option=word as three words.
  if (words.back() == "=") words.back().clear();
  std::erase(words, "=");
  const std::string last = words.back();
  const bool first = words.size() == 1;
  const CLI::App* command = first ? &app : command_of(app, words.front());
  if (command == nullptr) return {};
  if (first && !last.starts_with("-")) return matching(commands_of(app), last);
  size_t places = 0;  // number of positional words before the last
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    const CLI::Option* option = asked_by(*command, words[i]);
    if (option != nullptr && i + 2 == words.size()) return values(*option, last);
    if (option != nullptr) {
      ++i;
    } else if (!words[i].starts_with("-")) {
      ++places;
    }
  }
  if (const size_t equals = last.find('='); last.starts_with("--") && equals != std::string::npos) {
    const CLI::Option* option = asked_by(*command, last.substr(0, equals));
    if (option == nullptr) return {};
    return values(*option, last.substr(equals + 1), last.substr(0, equals + 1));
  }
  if (last.starts_with("-")) return matching(options_of(*command), last);
  for (const CLI::Option* option : command->get_options()) {
    if (option->get_positional() && places-- == 0) return values(*option, last);
  }
  return {};
}

bool complete(const CLI::App& app, std::span<const std::string> command_line) {
  if (command_line.size() < 3 || command_line[1] != "completion" || command_line[2] != "--")
    return false;
  for (const std::string& word : completions(app, command_line.subspan(3)))
    fmt::print("{}\n", word);
  return true;
}

Command add_completion(CLI::App& parent) {
  auto shell = std::make_shared<std::string>();
  CLI::App& app = *parent.add_subcommand("completion", "Print a script that completes commands");
  app.add_option("shell", *shell, "The shell that reads it")
      ->required()
      ->check(one_of({"bash", "zsh", "fish"}));
  app.footer(
      "Completes commands, options and the words that an option takes. The script asks the program "
      "for\n"
      "them, so that it holds for any version.\n"
      "Examples:\n"
      "  source <(steep completion bash)                # for this shell; in ~/.bashrc for all\n"
      "  source <(steep completion zsh)                 # in ~/.zshrc, behind compinit\n"
      "  steep completion fish > ~/.config/fish/completions/steep.fish");
  return [shell] {
    fmt::print("{}", *shell == "bash" ? kBash : *shell == "zsh" ? kZsh : kFish);
    return kDone;
  };
}

}  // namespace steep::cli
