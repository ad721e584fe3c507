#include "cli/interrupts.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string_view>

#include "cli/commands.h"
#include "steep/limits.h"

namespace steep::cli {
namespace {

volatile std::sig_atomic_t asked = 0;

void ask(int signal) {
  asked = 1;
  if (signal != SIGINT) return;
  constexpr std::string_view kText =
      "\nsteep: stopping after this step; Ctrl-C again stops at once and saves nothing\n";
  [[maybe_unused]] const ssize_t bytes = ::write(STDERR_FILENO, kText.data(), kText.size());
}

void catch_signal(int number, int flags) {
  struct sigaction action {};
  ::sigaction(number, nullptr, &action);
  if (action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = ask;
  action.sa_flags = flags | SA_RESTART;
  ::sigaction(number, &action, nullptr);
}

/// The interrupt check within steps: a step may go on for two seconds, so that short ones end
/// normally.
bool gives_up() {
  using Clock = std::chrono::steady_clock;
  static std::optional<Clock::time_point> since;
  if (asked == 0) return false;
  if (!since) since = Clock::now();
  return Clock::now() - *since > std::chrono::seconds(2);
}

[[noreturn]] void end_without_pages(int /*signal*/) {
  constexpr std::string_view kText =
      "\nsteep: a file of --data became shorter, or cannot be read any more, while it was used\n"
      "  remedy:   leave it as it is, and resume from the last checkpoint\n";
  [[maybe_unused]] const ssize_t bytes = ::write(STDERR_FILENO, kText.data(), kText.size());
  ::_exit(kEnvironment);
}

}  // namespace

void say_when_files_shrink() { ::signal(SIGBUS, end_without_pages); }

void outlive_failing_writes() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

void catch_interrupts() {
  const int once = static_cast<int>(SA_RESETHAND);
  catch_signal(SIGINT, once);
  catch_signal(SIGTERM, once);
  catch_signal(SIGHUP, 0);  // both the terminal and its shell send one
  set_interrupt_check(gives_up);
}

bool interrupted() { return asked != 0; }

}  // namespace steep::cli
